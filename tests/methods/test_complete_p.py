"""Method `complete_p`: what it draws, against what base, what it refuses, and signals that hold over depth."""

import math

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError, PlanError, UnsupportedError
from wellposed.zoo import import_library

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self, width, end=None):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.end = end

    def forward(self, x):
        h = self.down(self.up(self.norm(x)).relu())
        return x + (h if self.end is None else self.end(h))


class Net(nn.Module):
    def __init__(self, depth, width, norm=True, end=None):
        super().__init__()
        self.read, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.blocks = nn.Sequential(*(Block(width, end) for _ in range(depth)))
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.read(x))))


def planned(model, **options):
    return wp.plan(model, X, method="complete_p", **options)


@pytest.mark.parametrize("scheme", ["autoinit", "lecun", "kaiming", "orthogonal", "topology"])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_stds_are_those_of_the_scheme_times_the_factors_of_table_1(scheme, alpha):
    """Table 1 of the paper: std times c at the ends of branches, over √n_in at readouts, and the scheme's elsewhere."""
    model = Net(8, 32)
    ours = planned(model, scheme=scheme, alpha=alpha, base_depth=2, base_width=8).prescriptions
    options = {"readout": "unit"} if scheme == "topology" else {}
    theirs = wp.plan(model, X, method=scheme, **options).prescriptions
    c = 4.0**-alpha
    for name, before in theirs.items():
        mine = ours[name]
        end = ".down." in name
        factor = c if end else 0.5 if name == "head.weight" else 1.0
        assert mine.absorbed == (c if end else 1.0)
        assert (mine.depth, mine.branch) == ((4.0, c) if name.startswith("blocks") else (1.0, 1.0))
        if before.std is not None:
            assert mine.std == pytest.approx(factor * before.std, rel=1e-4), name  # norms have an ε
        if before.constant is not None:
            assert mine.constant == factor * before.constant


@pytest.mark.slow
def test_a_small_model_as_base_says_what_numbers_say():
    model = Net(8, 32)
    by_model = planned(model, base=Net(2, 8))
    by_graph = wp.plan(wp.trace(model, X), method="complete_p", base=wp.trace(Net(2, 8), X))
    by_numbers = planned(model, base_depth=2, base_width=8)
    assert by_model.prescriptions == by_numbers.prescriptions == by_graph.prescriptions
    assert by_model.options["base"] == "Net"


class Counted(nn.Module):
    """Everything in one list: the number of a layer says nothing of what it is."""

    def __init__(self, depth, width):
        super().__init__()
        ends = (nn.Linear(5, width), nn.Linear(width, 3))
        blocks = [
            layer
            for _ in range(depth)
            for layer in (nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width))
        ]
        self.layers = nn.ModuleList([ends[0], *blocks, ends[1]])

    def forward(self, x):
        read, *blocks, head = self.layers
        x = read(x)
        for norm, up, down in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
            x = x + down(up(norm(x)).relu())
        return head(x)


@pytest.mark.slow
def test_names_that_count_on_are_matched_by_their_places():
    for depth, before in ((6, 2), (5, 1), (3, 3)):
        by_model = planned(Counted(depth, 32), base=Counted(before, 8))
        by_numbers = planned(Counted(depth, 32), base_depth=before, base_width=8)
        assert by_model.prescriptions == by_numbers.prescriptions


def test_at_its_base_a_model_is_drawn_and_trained_as_by_the_scheme():
    model = Net(3, 16)
    plan, scheme = planned(model, base=Net(3, 16)), wp.plan(model, X, method="autoinit")
    assert all(plan.prescriptions[name].how == scheme.prescriptions[name].how for name in scheme.prescriptions)
    for kind in ("sgd", "adamw", "adam"):
        groups = plan.param_groups(model, 0.1, kind, weight_decay=0.2)
        assert {group["lr"] for group in groups} == {0.1}
        assert {group["weight_decay"] for group in groups} == {0.2, 0.0}
        assert {group.get("eps", 1e-8) for group in groups} == {1e-8}


@pytest.mark.slow
@pytest.mark.parametrize("norm", [True, False])
def test_signals_are_as_predicted_and_do_not_grow_with_the_depth(norm):
    sizes = {}
    for depth in (2, 32):
        model = Net(depth, 64, norm=norm)
        plan = planned(model, base_depth=2, base_width=64)
        plan.apply_(model)
        assert wp.check(model, X).ok
        graph = wp.trace(model, X)
        sizes[depth] = wp.propagate(graph, weights=plan.prescriptions)
    last = {depth: signals[f"blocks.{depth - 1}:add"].second_moment for depth, signals in sizes.items()}
    assert last[32] < last[2]
    assert 1.0 < last[32] < 1.2  # 1 + 32 / 16²
    head = {depth: signals["head"].second_moment for depth, signals in sizes.items()}
    # a readout is drawn for the stream that it reads, with a norm before it or without
    assert list(head.values()) == pytest.approx([1.0, 1.0], rel=1e-9)


def test_constants_and_kept_values_are_multiplied():
    class Scale(nn.Module):
        def __init__(self, values):
            super().__init__()
            self.gamma = nn.Parameter(values)

        def forward(self, h):
            return self.gamma * h

    class Scaled(Net):
        def __init__(self, depth, width, values):
            super().__init__(depth, width)
            for block in self.blocks:
                block.end = Scale(values.clone())

    for values in (torch.full((16,), 0.5), torch.linspace(0.1, 0.7, 16), torch.zeros(16)):
        model = Scaled(4, 16, values)
        plan = planned(model, base_depth=2)
        plan.apply_(model)
        plan.apply_(model)
        torch.testing.assert_close(model.blocks[1].end.gamma.detach(), 0.5 * values)
        assert plan.prescriptions["blocks.1.end.gamma"].absorbed == 0.5
        assert plan.prescriptions["blocks.1.down.weight"].absorbed == 1.0


@pytest.mark.slow
def test_models_that_scale_their_ends_themselves_are_drawn_anew():
    """GPT-2 divides the std of what ends its branches by √(2 layers); depth must not count twice."""
    transformers = import_library("transformers", what="the tests")
    sizes = {"n_embd": 32, "n_head": 4, "vocab_size": 61, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0}
    models = [transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=n, **sizes)) for n in (8, 2)]
    ids = torch.randint(0, 61, (2, 8))
    plan = wp.plan(models[0], ids, method="complete_p", base=models[1])
    scheme = wp.plan(models[0], ids, method="autoinit").prescriptions
    name = "transformer.h.3.mlp.c_proj.weight"
    assert plan.prescriptions[name].std == pytest.approx(0.25 * scheme[name].std, rel=0.03)


@pytest.mark.slow
def test_streams_side_by_side_need_a_number_each():
    class Pair(nn.Module):
        def __init__(self, depth, other):
            super().__init__()
            self.first, self.second = Net(depth, 16), Net(other, 16)

        def forward(self, x):
            return self.first(x) * self.second(x)

    model = Pair(6, 4)
    with pytest.raises(OptionError, match=r"one number for each of the 2 residual streams of Pair, received 1: .*6 br"):
        planned(model, base_depth=2)
    depths = {plan.prescriptions["first.blocks.0.up.weight"].depth for plan in (planned(model, base=Pair(2, 2)),)}
    assert depths == {3.0}
    both = planned(model, base_depth=(2, 2)).prescriptions
    assert {both["first.blocks.0.up.weight"].depth, both["second.blocks.0.up.weight"].depth} == {2.0, 3.0}


@pytest.mark.slow
def test_nested_streams_have_the_depth_of_their_own():
    class Group(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.blocks = nn.Sequential(*(Block(16) for _ in range(inner)))
            self.last = nn.Linear(16, 16)

        def forward(self, x):
            return x + self.last(self.blocks(x))

    class Groups(Net):
        def __init__(self, groups, inner):
            super().__init__(0, 16)
            self.blocks = nn.Sequential(*(Group(inner) for _ in range(groups)))

    plan = planned(Groups(4, 6), base=Groups(2, 2)).prescriptions
    assert plan["blocks.3.last.weight"].absorbed == 1 / 2
    assert plan["blocks.3.blocks.5.down.weight"].absorbed == 1 / 3
    assert plan["blocks.3.blocks.5.up.weight"].branch == pytest.approx(1 / 6)
    assert plan["blocks.3.blocks.5.up.weight"].depth == pytest.approx(6.0)
    with pytest.raises(PlanError, match=r"streams inside branches of others.*give base="):
        planned(Groups(4, 6), base_depth=2)


@pytest.mark.slow
def test_heads_follow_the_base():
    transformers = import_library("transformers", what="the tests")

    def llama(width, heads):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=width,
                intermediate_size=width,
                num_hidden_layers=2,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                vocab_size=61,
                max_position_embeddings=16,
            )
        )

    ids = torch.randint(0, 61, (2, 8))
    same = wp.plan(llama(64, 8), ids, method="complete_p", base=llama(32, 4))
    assert not any("heads" in warning for warning in same.warnings)
    name = "model.layers.0.self_attn.q_proj.weight"
    grown = wp.plan(llama(64, 4), ids, method="complete_p", base=llama(32, 4))
    assert grown.prescriptions[name].absorbed == pytest.approx(math.sqrt(8 / 16))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the base that rates are tuned on: give base="),
        ({"base_depth": 2, "alpha": 1.5}, "alpha must be a number from 0 to 1, received 1.5"),
        ({"base_depth": 2, "alpha": -0.1}, "alpha must be a number from 0 to 1"),
        ({"base_depth": 2, "alpha": float("nan")}, "alpha must be a number from 0 to 1"),
        ({"base_depth": 0}, "base_depth"),
        ({"base_depth": 9}, "base_depth is 9 residual branches, and Net has 4"),
        ({"base_depth": 2, "base_width": 64}, "base_width is 64 channels, and the residual stream of Net has 16"),
        ({"base_depth": 2, "base": 3}, "leave base_depth= and base_width= out"),
        ({"base": 3}, "base must be a model of PyTorch or a traced graph, received int"),
        ({"base_depth": 2, "scheme": "mup"}, "scheme names the method that complete_p builds on"),
        ({"base_depth": 2, "uncarried": "no"}, "uncarried"),
        ({"base_depth": 2, "scheme": "fixup"}, "scheme='fixup' scales branches by their number itself"),
        (
            {"base_depth": 2, "scheme": "topology", "scheme_options": {"merge": "preserve"}},
            "merge='preserve' scales branches by their number itself",
        ),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        planned(Net(4, 16), **options)


def test_bases_that_do_not_fit_are_refused():
    model = Net(4, 16)
    with pytest.raises(OptionError, match=r"base is larger than Net: .* width 32 in the base and 16 here"):
        planned(model, base=Net(2, 32))
    with pytest.raises(OptionError, match=r"base is larger than Net: it has 8 branches"):
        planned(model, base=Net(8, 16))
    with pytest.raises(OptionError, match=r"of another family: Net has 'head.weight'"):
        planned(model, base=nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 3)))

    class Plain(Net):
        def forward(self, x):
            x = self.read(x)
            for block in self.blocks:
                x = block.down(block.up(block.norm(x)).relu())
            return self.head(self.norm(x))

    with pytest.raises(OptionError, match=r"of another family: Net has 1 residual stream\(s\), and Plain 0"):
        planned(model, base=Plain(2, 8))


def test_what_differs_otherwise_is_said():
    class Wide(Net):
        def __init__(self, depth, width, classes):
            super().__init__(depth, width)
            self.head = nn.Linear(width, classes)

    plan = planned(Wide(4, 16, 7), base=Wide(2, 16, 3))
    assert any("'head.weight' is [7, 16] here and [3, 16] in the base" in warning for warning in plan.warnings)


def test_models_without_streams_follow_their_width():
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
    plan = planned(model, base_depth=2, base_width=8)
    assert any("has no residual stream" in warning for warning in plan.warnings)
    rates = {n: g["lr"] for g in plan.param_groups(model, 1.0, "adam") for n in g["param_names"]}
    assert (rates["0.weight"], rates["2.weight"], rates["4.weight"]) == (1.0, 0.25, 0.25)


def test_branches_that_nothing_carries_are_refused_or_left():
    model = Net(4, 16, end=nn.Tanh())
    with pytest.raises(PlanError, match=r"4 residual branches of Net have nothing that can carry .*tanh.*uncarried="):
        planned(model, base_depth=2)
    plan = planned(model, base_depth=2, uncarried="leave")
    assert any("4 residual branches keep the size" in warning for warning in plan.warnings)
    assert plan.prescriptions["blocks.0.down.weight"].absorbed == 1.0
    assert plan.prescriptions["blocks.0.up.weight"].depth == 1.0
    planned(model, base_depth=4)  # the base's own depth: there is nothing to carry


def test_branches_that_do_not_grow_in_number_need_no_carrier():
    """As positions that a convolution adds once, before the blocks."""

    class Positions(Net):
        def __init__(self, depth, width):
            super().__init__(depth, width)
            self.positions = nn.Linear(width, width)

        def forward(self, x):
            x = self.read(x)
            return self.head(self.norm(self.blocks(x + nn.functional.gelu(self.positions(x)))))

    with pytest.raises(PlanError, match="1 residual branches of Positions have nothing"):
        planned(Positions(8, 32), base_depth=3)
    plan = planned(Positions(8, 32), base=Positions(2, 32))
    assert not any("residual branches" in warning for warning in plan.warnings)
    assert plan.prescriptions["positions.weight"].depth == 1.0
    assert plan.prescriptions["blocks.0.down.weight"].absorbed == pytest.approx(3 / 9)
    frozen = Positions(8, 32)
    frozen.positions = nn.Sequential(nn.GELU(), nn.Linear(32, 32))
    base = Positions(2, 32)
    base.positions = nn.Sequential(nn.GELU(), nn.Linear(32, 32))
    frozen.positions.requires_grad_(False)
    assert not any("residual branches" in warning for warning in planned(frozen, base=base).warnings)


def test_sequences_in_blocks_are_matched_from_their_end():
    """``blocks.7.0`` is no ``blocks.1.2``: of a block that the base lacks, each part is measured against its like."""

    class Sequences(Net):
        def __init__(self, depth, width):
            super().__init__(depth, width)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)) for _ in range(depth)
            )

        def forward(self, x):
            x = self.read(x)
            for block in self.blocks:
                x = x + block(x)
            return self.head(self.norm(x))

    plan = planned(Sequences(8, 16), base=Sequences(2, 8)).prescriptions
    for block in (0, 1, 7):
        assert (plan[f"blocks.{block}.0.weight"].base_in, plan[f"blocks.{block}.2.weight"].base_in) == (8.0, 32.0)


def test_nested_streams_are_measured_against_their_kind():
    """Two kinds of blocks in turns, of which one holds more residual sums."""

    class Inner(nn.Module):
        def __init__(self, width, sums):
            super().__init__()
            self.steps, self.last = nn.ModuleList(nn.Linear(width, width) for _ in range(sums)), nn.Linear(width, width)

        def forward(self, x):
            h = x
            for step in self.steps:
                h = h + step(h.relu())
            return x + self.last(h)

    class One(Inner): ...

    class Three(nn.Module):
        def __init__(self, width, sums):
            super().__init__()
            self.mixer = Inner(width, sums)

        def forward(self, x):
            return self.mixer(x)

    class Turns(Net):
        def __init__(self, turns):
            super().__init__(0, 16)
            self.blocks = nn.Sequential(*(kind for _ in range(turns) for kind in (One(16, 1), Three(16, 3))))

    plan = planned(Turns(5), base=Turns(1)).prescriptions
    assert plan["blocks.8.last.weight"].absorbed == 1 / 5
    for name in ("blocks.8.steps.0.weight", "blocks.9.mixer.steps.2.weight"):
        assert (plan[name].absorbed, plan[name].branch) == (1.0, 1 / 5)


def test_sums_without_weights_in_branches_have_no_depth():
    """A running maximum is as long as the sequence."""

    class Scan(Block):
        def forward(self, x):
            h = self.up(self.norm(x))
            state = h[:, :8]
            for place in (2, 3, 4):
                top = torch.maximum(state, h[:, place : place + 8])
                state = (state - top).exp() + top
            return x + self.down(torch.cat([state, h[:, 8:]], -1)[:, : h.shape[1]])

    class Scans(Net):
        def __init__(self, depth):
            super().__init__(depth, 16)
            self.blocks = nn.Sequential(*(Scan(16) for _ in range(depth)))

    plan = planned(Scans(4), base_depth=2).prescriptions
    assert plan["blocks.0.down.weight"].absorbed == 0.5


def test_blocks_that_did_not_run_are_said():
    class Dropping(Net):
        def forward(self, x):
            x = self.read(x)
            for place, block in enumerate(self.blocks):
                if not self.training or place % 3:
                    x = block(x)
            return self.head(self.norm(x))

    model = Dropping(6, 16)
    assert any(
        "2 blocks of Dropping did not run in the pass that was traced, such as 'blocks.0'" in warning
        for warning in planned(model, base_depth=4).warnings
    )
    graph, base = (wp.trace(one, X, training=False) for one in (model, Dropping(3, 16)))
    plan = wp.plan(graph, method="complete_p", base=base)
    assert not any("did not run" in warning for warning in plan.warnings)
    assert plan.prescriptions["blocks.0.down.weight"].absorbed == 0.5
    (mixed,) = [
        warning
        for warning in wp.plan(graph, method="complete_p", base=wp.trace(Dropping(2, 16), X)).warnings
        if "did not run" in warning
    ]
    assert mixed.startswith("1 block of Dropping did not run")


class Halves(Net):
    """A reversible net: the first half-branch of the first block adds to what it is computed from beside."""

    def __init__(self, depth, width):
        super().__init__(depth, width)
        self.blocks = nn.ModuleList(nn.ModuleDict({"f": Block(8), "g": Block(8)}) for _ in range(depth))

    def forward(self, x):
        one, other = self.read(x).chunk(2, -1)
        for block in self.blocks:
            one = one + block["f"].down(block["f"].up(block["f"].norm(other)))
            other = other + block["g"].down(block["g"].up(block["g"].norm(one)))
        return self.head(self.norm(torch.cat([one, other], -1)))


class Stages(Net):
    """Stages whose first block has no sum, as in nets for phones: that block is meant so."""

    def __init__(self):
        super().__init__(2, 16)
        self.blocks = nn.ModuleList(nn.ModuleList([Block(16), Block(16)]) for _ in range(2))

    def forward(self, x):
        x = self.read(x)
        for first, second in self.blocks:
            x = second(first.down(first.up(first.norm(x))))
        return self.head(self.norm(x))


def test_parameters_beside_the_branches_of_their_block_are_said():
    (said,) = [w for w in planned(Halves(4, 16), base_depth=[1, 1]).warnings if "in no residual branch" in w]
    assert said.startswith("'blocks.0.f.norm.weight', 'blocks.0.f.norm.bias' and 4 more lie in no residual branch of H")
    silent = (Net(4, 16), 1), (Stages(), 1), (Halves(4, 16), [4, 3])  # the last is at its base's depth
    for model, depth in silent:
        assert not any("in no residual branch" in warning for warning in planned(model, base_depth=depth).warnings)


def test_frozen_ends_keep_their_size():
    model = Net(4, 16)
    for block in model.blocks[:2]:
        block.down.weight.requires_grad_(False)
    plan = planned(model, base_depth=2)
    assert any("2 residual branches keep the size" in w and "frozen" in w for w in plan.warnings)
    assert plan.prescriptions["blocks.0.down.bias"].absorbed == 1.0
    assert plan.prescriptions["blocks.3.down.bias"].absorbed == 0.5


def test_plans_are_saved_with_their_base(tmp_path):
    model = Net(8, 32)
    plan = planned(model, base=Net(2, 8))
    plan.save(tmp_path / "plan.json")
    again = wp.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert again.schema_version == 2
    assert wp.plan(model, X, method="autoinit").schema_version == 1
    groups = [one.param_groups(model, 0.1, "adamw", 0.1) for one in (plan, again)]
    assert [g["lr"] for g in groups[0]] == [g["lr"] for g in groups[1]]


def test_groups_have_the_rates_decays_and_epsilons_of_the_paper():
    model = Net(8, 32)
    plan = planned(model, base=Net(2, 8))
    by_name = {n: g for g in plan.param_groups(model, 1.0, "adamw", 0.1, betas=(0.8, 0.9)) for n in g["param_names"]}
    down, up, bias = (by_name[f"blocks.0.{name}"] for name in ("down.weight", "up.weight", "up.bias"))
    assert (down["lr"], down["weight_decay"], down["eps"], down["carried"]) == (1 / 16, 1.6, 1e-8 / 4, 0.25)
    assert (up["lr"], up["weight_decay"], up["eps"], up["carried"]) == (0.25, 0.4, 1e-8 / 16, 1.0)
    assert (bias["lr"], bias["weight_decay"], bias["eps"]) == (1.0, 0.0, 1e-8 / 16)
    assert down["betas"] == (0.8, 0.9)
    plain = {
        n: g for g in plan.param_groups(model, 1.0, "adamw", 0.1, independent_decay=False) for n in g["param_names"]
    }
    assert (plain["blocks.0.down.weight"]["weight_decay"], plain["blocks.0.up.weight"]["weight_decay"]) == (0.4, 0.1)
    kinds = [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad]
    for kind in kinds:
        kind(plan.param_groups(model, 1e-3, kind))
    eps = {g["eps"] for g in plan.param_groups(model, 1.0, torch.optim.AdamW(model.parameters(), eps=1e-4))}
    assert min(eps) == 1e-4 / 16
    assert all("eps" not in g for g in plan.param_groups(model, 1.0, "lion"))
    with pytest.raises(OptionError, match="sgd takes no eps here"):
        plan.param_groups(model, 1.0, "sgd", eps=1e-8)
    with pytest.raises(PlanError, match="the plan holds its base"):
        plan.param_groups(model, 1.0, "adamw", base_width=64)
    with pytest.raises(PlanError, match="the plan holds its base"):
        plan.param_groups(model, 1.0, "adamw", width="standard")
    for kind in ("adadelta", "radam", "rprop"):
        with pytest.raises(
            UnsupportedError, match=f"no groups for '{kind}' by this plan: 'blocks.0.down.weight' carries"
        ):
            plan.param_groups(model, 1.0, kind)
    with pytest.raises(UnsupportedError, match="adafactor"):
        plan.param_groups(model, 1.0, "adafactor")


def test_groups_of_a_plan_for_another_model_are_refused():
    with pytest.raises(PlanError):
        planned(Net(8, 32), base=Net(2, 8)).param_groups(Net(4, 32), 1.0)


def test_a_model_on_meta_has_the_plan_of_the_cpu():
    with torch.device("meta"):
        model, base = Net(8, 32), Net(2, 8)
    on_cpu = planned(Net(8, 32), base=Net(2, 8)).prescriptions
    assert {n: p.how for n, p in planned(model, base=base).prescriptions.items()} == {
        n: p.how for n, p in on_cpu.items()
    }


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_with_adamw_for_the_rest_trains_as_with_multipliers():
    """For c a power of two, Muon's bfloat16 arithmetic is the same on both sides."""
    model, reference = Net(8, 32), Net(8, 32)
    plan = planned(model, base=Net(2, 8))
    for one in (model, reference):
        plan.apply_(one)
    with torch.no_grad():
        for block in reference.blocks:
            block.down.weight.mul_(4.0)
            block.down.bias.mul_(4.0)
            block.down.register_forward_hook(lambda _, __, out: out * 0.25)
    groups = plan.param_groups(model, 0.02, "muon", 0.1, others=("adamw", 0.01))
    with_eps = plan.param_groups(model, 0.02, "muon", others=("adamw", 0.01), eps=1e-5)
    assert max(g["eps"] for g in with_eps if g["family"] == "adam") == 1e-5
    assert max(g["eps"] for g in with_eps if g["family"] == "muon") < 1e-6
    theirs = plan.param_groups(reference, 0.02, "muon", 0.1, others=("adamw", 0.01))
    for group in theirs:  # without the constant: its rate, its decay, its eps
        c = group["carried"]
        group.update(lr=group["lr"] / c, weight_decay=group["weight_decay"] * c, eps=group["eps"] * c)
    for made in (groups, theirs):
        for group in made:
            for key in ("param_names", "name"):
                group.pop(key)
    pairs = []
    for made in (groups, theirs):
        mine, rest = ([g for g in made if g["family"] == family] for family in ("muon", "adam"))
        pairs.append((torch.optim.Muon(mine), torch.optim.AdamW(rest)))
    for _ in range(10):
        for one, optimizers in ((model, pairs[0]), (reference, pairs[1])):
            one.zero_grad()
            (one(X) - 1.0).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    torch.testing.assert_close(model(X), reference(X), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.blocks[0].down.weight * 4.0, reference.blocks[0].down.weight, rtol=1e-5, atol=1e-6)
