"""Method `complete_p` against the model with explicit multipliers in its forward pass: the same training, step by step.

The reference knows nothing of graphs: hooks multiply what the ends of branches make by c, and every parameter's rate,
decay and ε are those of table 1 of arXiv 2505.01618 (for SGD with the gradient's own scale), by its place in the model.
"""

import fnmatch
import functools
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.zoo import import_library

STEPS = 10
LR, DECAY, EPS = {"sgd": 0.01, "adamw": 2e-3, "adam": 2e-3, "rmsprop": 5e-4}, 0.1, 1e-6
IDS = torch.randint(0, 60, (2, 6), generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Parallel branches, one of which ends in a weight norm, the other in a gate after its last weight."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate, self.side = (nn.Linear(width, width) for _ in range(3))
        self.down = nn.utils.parametrizations.weight_norm(nn.Linear(width, width))

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(self.up(h).tanh()) + self.side(h) * self.gate(h).sigmoid()


class Parallel(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.read, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x):
        x = self.read(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class PostNorm(nn.Module):
    """x = norm(x + relu(f(x))): the end is a rectifier, through which a factor goes."""

    def __init__(self, depth, width):
        super().__init__()
        self.read, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x):
        x = self.read(x)
        for inner, last, norm in zip(self.inner, self.last, self.norms, strict=True):
            x = norm(x + last(inner(x).tanh()).relu())
        return self.head(x)


class Modulated(nn.Module):
    """Blocks of two branches, which one weight of the block shifts and gates by what all blocks read."""

    def __init__(self, depth, width):
        super().__init__()
        self.read, self.time, self.head = nn.Linear(5, width), nn.Linear(5, width), nn.Linear(width, 3)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"modulation": nn.Linear(width, 4 * width)}
                | {name: nn.Linear(width, width) for name in ("up", "down", "inner", "last")}
            )
            for _ in range(depth)
        )

    def forward(self, x):
        t = self.time(x.flip(-1)).tanh()
        x = self.read(x)
        for block in self.blocks:
            shift, gate, second_shift, second_gate = block["modulation"](t).chunk(4, -1)
            x = x + block["down"]((block["up"](x) + shift).tanh()) * gate.sigmoid()
            x = x + block["last"]((block["inner"](x) + second_shift).tanh()) * second_gate.sigmoid()
        return self.head(self.norm(x))


class OneMore(nn.Module):
    """A norm whose gain is kept as its difference from 1."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1.0 + self.weight)


class Sandwich(nn.Module):
    """Branches that end in such a norm, and words that are scored by the table that they are looked up in."""

    def __init__(self, depth, width):
        super().__init__()
        self.words = nn.Embedding(61, width)
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.after = nn.ModuleList(OneMore(width) for _ in range(depth))
        self.norm = OneMore(width)

    def forward(self, input_ids):
        x = self.words(input_ids)
        for inner, after in zip(self.inner, self.after, strict=True):
            x = x + after(inner(x).tanh())
        return self.norm(x) @ self.words.weight.T


@dataclass(frozen=True)
class Case:
    """A family of models.

    Attributes:
        make: from blocks and width to a model.
        ends: modules whose output is multiplied by c.
        inside: patterns of the parameters in branches.
        carriers: patterns of those that carry c.
        read: patterns of embeddings and of weights that meet the input, also of the matrices in branches with one input
            channel each.
        readouts: patterns of weights that end in a dimension of the data.
        matrices: patterns of matrices, which decay.
        slower: what the rate of SGD is divided by.
        free: patterns of parameters that no width belongs to.
        inputs: of the model.
        scored: the module before a readout that is an embedding too, whose output is multiplied by √base/width.
        offset: what is added to carriers before they are used.
    """

    make: object
    ends: tuple
    inside: tuple
    carriers: tuple
    read: tuple
    readouts: tuple
    free: tuple = ()
    inputs: dict = field(default_factory=lambda: {"input_ids": IDS})
    matrices: tuple = ("*weight",)
    slower: float = 1.0
    scored: str = ""
    offset: float = 0.0


def hugging(kind, config, **fields):
    def make(depth, width):
        transformers = import_library("transformers", what="the tests")
        sizes = {key: value(depth, width) if callable(value) else value for key, value in fields.items()}
        torch.manual_seed(0)
        return getattr(transformers, kind)(getattr(transformers, config)(**sizes))

    return make


def sizes(**more):
    return {
        "vocab_size": 61,
        "hidden_size": lambda d, w: w,
        "intermediate_size": lambda d, w: 2 * w,
        "num_hidden_layers": lambda d, w: d,
        "num_attention_heads": lambda d, w: w // 8,
        "max_position_embeddings": 32,
        **more,
    }


def timm(name, **fields):
    def make(depth, width):
        library = import_library("timm", what="the tests")
        given = {key: value(depth, width) if callable(value) else value for key, value in fields.items()}
        torch.manual_seed(0)
        model = library.create_model(name, num_classes=5, **given)
        for key, parameter in model.named_parameters():
            if key in ("cls_token", "pos_embed"):  # nearly zeros, before which a readout would be huge
                nn.init.normal_(parameter)
        return model

    return make


def images(size):
    return {"x": torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}


VECTORS = {"x": torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}
CASES = {
    "llama": Case(
        hugging("LlamaForCausalLM", "LlamaConfig", **sizes(num_key_value_heads=lambda d, w: w // 16)),
        ("model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"),
        ("model.layers.*",),
        ("*.o_proj.weight", "*.down_proj.weight"),
        ("*embed_tokens.weight",),
        ("lm_head.weight",),
    ),
    "gpt2": Case(
        hugging(
            "GPT2LMHeadModel", "GPT2Config", vocab_size=61, n_embd=lambda d, w: w, n_layer=lambda d, w: d,
            n_head=lambda d, w: w // 8, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            tie_word_embeddings=False, bos_token_id=0, eos_token_id=0,
        ),
        ("transformer.h.*.attn.c_proj", "transformer.h.*.mlp.c_proj"),
        ("transformer.h.*",),
        ("*.c_proj.*",),
        ("*wte.weight", "*wpe.weight"),
        ("lm_head.weight",),
    ),
    "gpt2, tied": Case(
        hugging(
            "GPT2LMHeadModel", "GPT2Config", vocab_size=61, n_embd=lambda d, w: w, n_layer=lambda d, w: d,
            n_head=lambda d, w: w // 8, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=0, eos_token_id=0,
        ),
        ("transformer.h.*.attn.c_proj", "transformer.h.*.mlp.c_proj"),
        ("transformer.h.*",),
        ("*.c_proj.*",),
        ("*wte.weight", "*wpe.weight"),
        (),
        scored="transformer.ln_f",
    ),
    "neox": Case(
        hugging(
            "GPTNeoXForCausalLM", "GPTNeoXConfig",
            **sizes(hidden_dropout=0.0, attention_dropout=0.0, bos_token_id=0, eos_token_id=0),
        ),
        ("gpt_neox.layers.*.attention.dense", "gpt_neox.layers.*.mlp.dense_4h_to_h"),
        ("gpt_neox.layers.*",),
        ("*.attention.dense.*", "*.dense_4h_to_h.*"),
        ("*embed_in.weight",),
        ("lm_head.weight",),
    ),
    "olmo2": Case(
        hugging("Olmo2ForCausalLM", "Olmo2Config", **sizes()),
        ("model.layers.*.post_attention_layernorm", "model.layers.*.post_feedforward_layernorm"),
        ("model.layers.*",),
        ("*.post_attention_layernorm.weight", "*.post_feedforward_layernorm.weight"),
        ("*embed_tokens.weight",),
        ("lm_head.weight",),
    ),
    "mixtral": Case(
        hugging(
            "MixtralForCausalLM", "MixtralConfig",
            **sizes(num_local_experts=4, num_key_value_heads=lambda d, w: w // 16, experts_implementation="eager"),
        ),
        ("model.layers.*.self_attn.o_proj", "model.layers.*.mlp"),
        ("model.layers.*",),
        ("*.o_proj.weight", "*.experts.down_proj"),
        ("*embed_tokens.weight",),
        ("lm_head.weight", "*.gate.weight"),
        matrices=("*weight", "*_proj"),
    ),
    "bert": Case(
        hugging(
            "BertForMaskedLM", "BertConfig",
            **sizes(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, tie_word_embeddings=False),
        ),
        ("bert.encoder.layer.*.attention.output.dense", "bert.encoder.layer.*.output.dense"),
        ("bert.encoder.layer.*.attention.self.*", "bert.encoder.layer.*.dense.*"),
        ("*.output.dense.*",),
        ("*embeddings.*_embeddings.weight",),
        ("cls.predictions.decoder.weight",),
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    ),
    "t5": Case(
        hugging(
            "T5ForConditionalGeneration", "T5Config", vocab_size=61, d_model=lambda d, w: w, d_ff=lambda d, w: 2 * w,
            d_kv=8, num_heads=lambda d, w: w // 8, num_layers=lambda d, w: d, dropout_rate=0.0,
            tie_word_embeddings=False, decoder_start_token_id=0, pad_token_id=0,
        ),
        ("*.SelfAttention.o", "*.EncDecAttention.o", "*.DenseReluDense.wo"),
        ("encoder.block.*", "decoder.block.*"),
        ("*Attention.o.weight", "*.wo.weight"),
        ("shared.weight",),
        (),
        inputs={"input_ids": IDS, "decoder_input_ids": IDS},
        scored="decoder.final_layer_norm",
    ),
    "vit": Case(
        timm("vit_tiny_patch16_224", img_size=32, embed_dim=lambda d, w: w, depth=lambda d, w: d,
             num_heads=lambda d, w: w // 8),
        ("blocks.*.attn.proj", "blocks.*.mlp.fc2"),
        ("blocks.*",),
        ("*.attn.proj.*", "*.mlp.fc2.*"),
        ("patch_embed.proj.weight", "pos_embed", "cls_token"),
        ("head.weight",),
        ("head.bias",),
        images(32),
    ),
    "deit3": Case(
        timm("deit3_small_patch16_224", img_size=32, embed_dim=lambda d, w: w, depth=lambda d, w: d,
             num_heads=lambda d, w: w // 8, init_values=0.1),
        ("blocks.*.ls1", "blocks.*.ls2"),
        ("blocks.*",),
        ("*.gamma",),
        ("patch_embed.proj.weight", "pos_embed", "cls_token"),
        ("head.weight",),
        ("head.bias",),
        images(32),
    ),
    "resnetv2": Case(
        timm("resnetv2_50", layers=lambda d, w: (d, d), channels=lambda d, w: (4 * w, 4 * w), stem_chs=lambda d, w: w),
        ("stages.*.blocks.*.conv3",),
        ("stages.*.conv?.weight", "stages.*.norm[23].*", "stages.*.blocks.[1-9].norm1.*"),
        ("*.conv3.weight",),
        ("stem.conv.weight",),
        ("head.fc.weight",),
        ("head.fc.bias",),
        images(32),
    ),
    "parallel": Case(
        lambda depth, width: Parallel(depth, width),
        ("blocks.*.down", "blocks.*.side"),
        ("blocks.*",),
        ("*.side.*", "*.down.bias", "*.down.*original0"),
        ("read.weight",),
        ("head.weight",),
        ("head.bias",),
        VECTORS,
        matrices=("*weight", "*original1"),
    ),
    "postnorm": Case(
        lambda depth, width: PostNorm(depth, width),
        ("last.*",),
        ("inner.*", "last.*"),
        ("last.*",),
        ("read.weight",),
        ("head.weight",),
        ("head.bias",),
        VECTORS,
    ),
    "sandwich, tied": Case(
        lambda depth, width: Sandwich(depth, width),
        ("after.*",),
        ("inner.*", "after.*"),
        ("after.*",),
        ("words.weight",),
        (),
        scored="norm",
        offset=1.0,
    ),
    "modulated": Case(
        lambda depth, width: Modulated(depth, width),
        ("blocks.*.down", "blocks.*.last"),
        ("blocks.*",),
        ("*.down.*", "*.last.*"),
        ("read.weight", "time.weight"),
        ("head.weight",),
        ("head.bias",),
        VECTORS,
    ),
}  # fmt: skip
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, betas=(0.9, 0.95)),
    "adamw": lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.95)),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups),
}


def matches(name, patterns):
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def by_table(case, model, optimizer, rate, m, ratio, alpha):
    """Groups of one parameter each, by table 1 of arXiv 2505.01618 for the model with explicit multipliers."""
    groups = []
    excepted = model.no_weight_decay() if hasattr(model, "no_weight_decay") else ()
    for name, parameter in model.named_parameters():
        matrix = matches(name, case.matrices) and parameter.ndim >= 2
        inside = matches(name, case.inside) and not matches(name, ("*relative_attention_bias*",))
        readout, read = matches(name, case.readouts), matches(name, case.read)
        n_in = ratio if matrix and not read else 1.0
        n_out = 1.0 if readout or matches(name, (*case.free, "*relative_attention_bias*")) else ratio
        decayed = DECAY if name not in excepted and (matrix or (read and parameter.ndim >= 2)) else 0.0
        over_depth = m ** (alpha - 1) if inside else 1.0
        factor = n_out / n_in if optimizer == "sgd" else 1.0 / n_in
        if matches(name, ("*relative_attention_bias*",)):
            factor = 1.0
        if optimizer == "sgd" and inside:
            over_depth = m ** (2 * alpha - 1)
        groups.append(
            {
                "params": [parameter],
                "lr": rate * factor * over_depth,
                "weight_decay": decayed if optimizer in ("adam", "rmsprop") else decayed / factor,
                **({} if optimizer == "sgd" else {"eps": EPS * (m**-alpha if inside else 1.0) / n_out}),
            }
        )
    return groups


def multiplied(case, model, c, tied):
    """Multiply by c what the ends of branches make, and what a tied readout takes in by its own factor."""

    def times(factor):
        def hook(_, __, output):
            return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor

        return hook

    ends = [module for name, module in model.named_modules() if matches(name, case.ends)]
    assert ends
    for module in ends:
        module.register_forward_hook(times(c))
    if case.scored:
        model.get_submodule(case.scored).register_forward_hook(times(tied))


def loss_of(model, inputs):
    output = model(**inputs)
    output = output if isinstance(output, torch.Tensor) else output.logits
    wave = torch.linspace(0, 7, output.numel(), dtype=output.dtype).sin().view_as(output)
    return (output - wave).square().mean()


@functools.cache
def plan_of(name, alpha, depth, base, width, first):
    case = CASES[name]
    model, small = case.make(depth, width).double(), case.make(base, first).double()
    return wp.plan(model, **case.inputs, method="complete_p", base=small, alpha=alpha)


def trained(name, optimizer, alpha, depth=4, base=2, width=32, first=16, steps=STEPS, clip=None):
    """Train both models; return the largest relative difference of a parameter, and how far training moved them."""
    case, m, ratio = CASES[name], depth / base, width / first
    c = m**-alpha
    rate = LR[optimizer] / (case.slower if optimizer == "sgd" else 1.0)
    ours, theirs = (case.make(depth, width).double() for _ in range(2))
    plan = plan_of(name, alpha, depth, base, width, first)
    for model in (ours, theirs):
        plan.apply_(model)
    tied = first**0.5 / width
    carried = {key: c for key, _ in theirs.named_parameters() if matches(key, case.carriers)}
    assert carried
    if case.scored:
        carried |= {key: tied for key, _ in theirs.named_parameters() if key.startswith(f"{case.scored}.")}
    with torch.no_grad():
        for key, factor in carried.items():
            theirs.get_parameter(key).add_(case.offset).div_(factor).sub_(case.offset)
    multiplied(case, theirs, c, tied)
    start = {key: value.detach().clone() for key, value in theirs.named_parameters()}
    given = {} if optimizer == "sgd" else {"eps": EPS}
    own = OPTIMIZERS[optimizer](plan.param_groups(ours, rate, optimizer, DECAY, **given))
    reference = OPTIMIZERS[optimizer](by_table(case, theirs, optimizer, rate, m, ratio, alpha))
    for _ in range(steps):
        for model, optimise in ((ours, own), (theirs, reference)):
            optimise.zero_grad()
            loss_of(model, case.inputs).backward()
            if clip is not None:
                norm = clip(model, optimise, model is ours)
                assert norm > 2 * CLIP  # it is active
            optimise.step()
    worst, moved = 0.0, 0.0
    for key, value in theirs.named_parameters():
        value = value.detach()
        held = ours.get_parameter(key).detach()
        if key in carried:
            held = (held + case.offset) / carried[key] - case.offset
        scale = max(float(value.abs().max()), 1e-3)
        assert bool(value.isfinite().all())
        worst = max(worst, float((held - value).abs().max()) / scale)
        moved = max(moved, float((value - start[key]).abs().max()) / scale)
    return worst, moved


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", CASES)
def test_a_plan_trains_as_the_model_with_multipliers(name, optimizer):
    worst, moved = trained(name, optimizer, 1.0)
    assert moved > 1e-2
    assert worst < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("alpha", [0.5, 0.0, 0.8])
@pytest.mark.parametrize("name", ["llama", "parallel", "modulated"])
def test_any_power_of_the_depth_trains_as_multipliers_do(name, alpha, optimizer):
    """Factors that no binary number is, over three times the depth; rounding is all that differs."""
    worst, moved = trained(name, optimizer, alpha, depth=6)
    assert moved > 1e-2
    assert worst < 1e-12


CLIP = 1e-3


def counting(model, optimizer, ours):
    if ours:
        return wp.clip_grad_norm_(optimizer, CLIP)
    return nn.utils.clip_grad_norm_(model.parameters(), CLIP)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "olmo2", "mixtral", "resnetv2", "parallel"])
def test_clipping_that_counts_what_is_carried_trains_as_multipliers_do(name, optimizer):
    worst, _ = trained(name, optimizer, 1.0, clip=counting)
    assert worst < 1e-12


@pytest.mark.slow
def test_clipping_that_does_not_count_what_is_carried_trains_otherwise():
    def plain(model, optimizer, ours):
        return nn.utils.clip_grad_norm_(model.parameters(), CLIP)

    worst, _ = trained("llama", "sgd", 1.0, steps=10, clip=plain)
    assert worst > 1e-6


@pytest.mark.parametrize(
    "sabotage",
    [
        lambda group: group.update(eps=EPS),
        lambda group: group.update(lr=LR["adamw"]),
        lambda group: group.update(weight_decay=DECAY * bool(group["weight_decay"])),
    ],
)
def test_a_setting_that_is_left_unscaled_trains_otherwise(sabotage, monkeypatch):
    groups_of = wp.Plan.param_groups

    def sabotaged(*args, **kwargs):
        groups = groups_of(*args, **kwargs)
        for group in groups:
            sabotage(group)
        return groups

    monkeypatch.setattr(wp.Plan, "param_groups", sabotaged)
    worst, _ = trained("gpt2", "adamw", 1.0, steps=10)
    assert worst > 1e-6
