"""Rule ``maximal_update``: its derivatives, its expectation, known chains, and what it leaves untouched."""

import copy
import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellposed as wp
from wellposed import rates
from wellposed.errors import InputError, OptionError, PlanError, RateError
from wellposed.rates.passes import GraphRun, before, find_readout, small_graph, trained, without_noise
from wellposed.zoo import import_library, import_torchvision

relative = partial(rates.relative, rule="maximal_update")


class InPlace(nn.Module):
    """In-place operators, views that are written, batch norm, dropout, attention, a shared parameter."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.qkv, self.out = nn.BatchNorm2d(8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.shared = nn.Parameter(torch.randn(8))

    def forward(self, x):
        x = self.stem(x)
        x = F.gelu(self.norm(x)).add_(self.shared[:, None, None])
        x[:, ::2] *= 1.5
        x = x + F.dropout(self.conv(x), 0.5, self.training)
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).chunk(3, -1)
        tokens = tokens + F.scaled_dot_product_attention(q, k, v, dropout_p=0.3 * self.training) * self.shared
        return self.out(tokens.mean(1))


def in_place():
    return InPlace(), {"x": torch.randn(3, 2, 7, 7)}


def gru():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.out = nn.GRU(5, 6, batch_first=True, num_layers=2, dropout=0.5), nn.Linear(6, 2)

        def forward(self, x):
            return self.out(self.gru(x)[0])

    return Net(), {"x": torch.randn(1, 4, 5)}


def resnet():
    return import_torchvision().models.resnet18(num_classes=4), {"x": torch.randn(2, 3, 64, 64)}


def vit():
    timm = import_library("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=4, depth=3, drop_rate=0.2)
    return model, {"x": torch.randn(1, 3, 32, 32)}


def llama():
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 50, (1, 8))}


READOUTS = {"in_place": "out", "gru": "out", "resnet": "fc", "vit": "head", "llama": "lm_head"}


def _without_dropout(attention, *args, dropout_p=0.0, **options):
    return attention(*args, **options)


@pytest.mark.slow
@pytest.mark.parametrize("make", [in_place, gru, resnet, vit, llama], ids=lambda f: f.__name__)
def test_derivatives_are_those_of_the_model(make):
    """J^T v and J t of what the readout receives, against autograd and differences on the model itself (float64)."""
    torch.manual_seed(0)
    model, example = make()
    model = model.double()
    example = {k: v.double() if v.is_floating_point() else v for k, v in example.items()}
    graph = wp.trace(model, **example)
    part = without_noise(before(graph, find_readout(graph).values))
    names = trained(part)
    parameters = {name: p.tensor.detach() for name, p in graph.parameters.items()}
    run = GraphRun(part, parameters, names, {v: graph.example[v] for v in graph.inputs}, seed=0)
    reference = copy.deepcopy(model).train()
    for module in reference.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.GRU):
            module.dropout = 0.0
    seen = []
    reference.get_submodule(READOUTS[make.__name__]).register_forward_pre_hook(lambda m, args: seen.append(args[0]))

    def features():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, "dropout", lambda x, *rest, **options: x)
            quiet = partial(_without_dropout, F.scaled_dot_product_attention)
            patch.setattr(F, "scaled_dot_product_attention", quiet)
            reference(**example)
        return seen.pop()

    (ours,) = run.outputs
    theirs = features()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    own = dict(reference.named_parameters())

    def pulled_back(cotangent):
        leaves = [own[n] for n in names]
        return torch.autograd.grad(
            theirs, leaves, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
        )

    gradient = run.gradient([torch.randn_like(theirs)])
    cotangents = [torch.randn_like(theirs) for _ in range(3)]
    expected = [pulled_back(v) for v in cotangents]
    for name, mine, other in zip(names, run.gradient(cotangents[:1]), expected[0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()) + 1e-12, msg=name)
    for mode in ("forward", "double backward"):
        (change,) = run.change(gradient, mode)
        for cotangent, by_parameter in zip(cotangents, expected, strict=True):  # <v, J t> = <J^T v, t>
            product = sum(float((a * b).sum()) for a, b in zip(by_parameter, gradient, strict=True))
            size = float(change.norm() * cotangent.norm())
            assert float((change * cotangent).sum()) == pytest.approx(product, abs=1e-5 * size)


def squares_by_jacobian(features, parameters, n):
    """E over readouts w ~ N(0, 1/n) of mean_j (J J^T w)_j²: the squared Frobenius norm of J J^T, over n²."""
    values = features.flatten()
    rows = [
        torch.autograd.grad(v, parameters, retain_graph=True, allow_unused=True, materialize_grads=True) for v in values
    ]
    jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    return float((jacobian @ jacobian.T).square().sum()) / n**2


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 5, 3),
            nn.Tanh(),
            nn.Conv2d(5, 5, 3, stride=2, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(20, 6),
        )
        self.skip, self.readout = nn.Linear(6, 6), nn.Linear(6, 3)

    def features(self, x):
        x = self.body(x)
        return x + F.gelu(self.skip(x))

    def forward(self, x):
        return self.readout(self.features(x))


@pytest.mark.slow
def test_the_expectation_is_that_of_dense_jacobians():
    torch.manual_seed(0)
    model = Body()
    found = relative(model, torch.randn(2, 2, 7, 7), samples=200, exponent=1)
    reference = copy.deepcopy(model).double()
    hidden = [p for n, p in reference.named_parameters() if "readout" not in n]
    values = []
    for seed in range(60):
        x = torch.randn(1, 2, 7, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values.append(squares_by_jacobian(reference.features(x), hidden, 6))
    error = math.hypot(np.std(values, ddof=1) / math.sqrt(len(values)), found.figures["update_error"])
    assert abs(found.figures["update"] - np.mean(values)) < 4 * error
    assert found.value == pytest.approx(found.figures["update"] ** -0.5)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_chains_of_relu_layers_have_their_closed_form(depth):
    """For z_L of Gaussian layers S = n Σ_lm a_l a_m (1 + 2 min(k_l, k_m)), k_l = L - l, a_1 = 1 and 1/2 behind."""
    width = 256
    layers = [nn.Linear(width, width, bias=False)]
    for _ in range(depth - 1):
        layers += [nn.ReLU(), nn.Linear(width, width, bias=False)]
    model = nn.Sequential(*layers, nn.Linear(width, 4))
    values = []
    for draw in range(12):
        torch.manual_seed(draw)
        for i, layer in enumerate(layers[::2]):
            nn.init.normal_(layer.weight, 0.0, math.sqrt((2 if i else 1) / width))
        values.append(relative(model, torch.randn(1, width), samples=6, seed=draw).figures["update"])
    shares = [1.0] + [0.5] * (depth - 1)
    expected = width * sum(
        shares[i] * shares[j] * (1 + 2 * min(depth - 1 - i, depth - 1 - j)) for i in range(depth) for j in range(depth)
    )
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    # corrections of order depth / width to the limit of large width
    assert abs(np.mean(values) - expected) < 4 * error + 4 * depth / width * expected


@pytest.mark.slow
def test_draws_of_a_plan_are_averaged():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(2, 16)
    plan = wp.plan(model, x, seed=5)
    one = relative(model, x, plan=plan, seed=3)
    plan.apply_(model)
    assert one.value == pytest.approx(relative(model, x, seed=3).value, rel=1e-6)
    many = relative(model, x, plan=plan, draws=6, samples=8)
    assert many.figures["draws"] == 6
    assert many.figures["update_error"] > 0
    with torch.device("meta"):
        absent = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    assert relative(absent, x, plan=plan, seed=3).value == pytest.approx(one.value, rel=1e-6)
    with pytest.raises(PlanError, match="6 parameters of Sequential are on meta and no plan draws them"):
        relative(absent, x)


def test_dropout_is_off():
    class Net(nn.Module):
        def __init__(self, rate):
            super().__init__()
            self.rate, self.first, self.second, self.out = rate, nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)

        def forward(self, x):
            x = F.dropout(F.relu(self.first(x)), self.rate, self.training)
            mask = x.new_empty(len(x), 1).bernoulli_(1 - self.rate).div_(1 - self.rate)  # stochastic depth
            return self.out(x + self.second(x) * mask)

    torch.manual_seed(0)
    noisy, quiet = Net(0.9), Net(0.0)
    quiet.load_state_dict(noisy.state_dict())
    x = torch.randn(1, 8)
    assert relative(noisy, x).value == pytest.approx(relative(quiet, x).value)


def snapshot(model):
    return (
        {
            n: (t.clone(), t.requires_grad, None if t.grad is None else t.grad.clone())
            for n, t in model.named_parameters()
        },
        {n: t.clone() for n, t in model.named_buffers()},
        [m.training for m in model.modules()],
        torch.get_rng_state(),
    )


def same(a, b):
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b), strict=True)
    )


@pytest.mark.slow
def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = InPlace()
    model.norm.eval()
    model.qkv.weight.grad = torch.randn_like(model.qkv.weight)
    model.stem.requires_grad_(False)
    x = torch.randn(2, 2, 7, 7)
    was = snapshot(model)
    relative(model, x, samples=3, per_layer=True)
    assert same(was, snapshot(model))
    with pytest.raises(InputError):
        relative(model, x, inputs={"nothing": wp.Input.white()})
    assert same(was, snapshot(model))
    model.out.weight.data.fill_(math.nan)
    model.conv.weight.data.fill_(1e30)
    was = snapshot(model)
    with pytest.raises(RateError, match="more than its number format can hold"):
        relative(model, x, samples=2)
    for (a, *_), (b, *_) in zip(was[0].values(), snapshot(model)[0].values(), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


# ---- what the readout receives --------------------------------------------------------------------------------------


def received(model, *example):
    graph = wp.trace(model, *example)
    found = find_readout(graph)
    return [graph.values[v].name for v in found.values], len(found.weights)


def test_readouts_are_left_out_of_the_update():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

        def forward(self, x):
            x = F.relu(self.body(x))
            return {"a": self.a(x), "b": self.b(x).softmax(-1), "hidden": x}

    class Tail(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.branch = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.body(x)
            return x + self.branch(F.relu(x))

    x = torch.randn(2, 4)
    assert received(Heads(), x) == (["relu"], 2)
    assert received(Tail(), x) == (["add"], 0)
    assert received(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()), x) == (["1"], 1)
    assert received(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), x) == (["0"], 1)


def test_a_network_of_a_readout_alone_is_refused():
    with pytest.raises(RateError, match="no parameter before the readout"):
        relative(nn.Linear(4, 2), torch.randn(1, 4))

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.w * 2

    with pytest.raises(RateError, match="no floating-point output of Constant depends on an input"):
        relative(Constant(), torch.randn(1, 4))


def test_one_sample_stands_for_a_batch_unless_it_is_normalised():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    normed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(20, 4)
    assert small_graph(plain, (x,), {}, True).values[0].shape == (1, 4)
    assert small_graph(normed, (x,), {}, True).values[0].shape == (8, 4)
    assert small_graph(normed, (x,), {}, False).values[0].shape == (1, 4)
    # a graph is taken as it is; without a norm over the batch, its samples are worth as many single inputs
    whole = relative(wp.trace(plain, x), samples=120)
    single = relative(plain, x, samples=120, seed=1)
    error = math.hypot(whole.figures["update_error"], single.figures["update_error"])
    assert abs(whole.figures["update"] - single.figures["update"]) < 4 * error


# ---- the public function --------------------------------------------------------------------------------------------


def test_bad_options_are_refused_with_near_matches():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(1, 4)
    with pytest.raises(OptionError, match="unknown rate rule 'maximal_updates'; did you mean 'maximal_update'"):
        relative(model, x, rule="maximal_updates")
    with pytest.raises(
        OptionError, match=r"'sample' is no option of rate rule 'maximal_update'.*did you mean 'samples'"
    ):
        relative(model, x, sample=3)
    with pytest.raises(OptionError, match="samples must be an integer of at least 1"):
        relative(model, x, samples=0)
    with pytest.raises(OptionError, match="draws=3 needs a plan"):
        relative(model, x, draws=3)
    with pytest.raises(OptionError, match="exponent must be a finite number above 0"):
        relative(model, x, exponent=-1)
    with pytest.raises(OptionError, match="takes no plan"):
        relative(model, x, rule="paths", plan=wp.plan(model, x))
    with pytest.raises(OptionError, match="a graph takes no example inputs"):
        relative(wp.trace(model, x), x)


def test_users_register_rules_of_their_own():
    @rates.rate_rule("one")
    def one(graph, *, power=1.0):
        return rates.RelativeRate(value=len(graph.parameters) ** power, rule="one", reason="count")

    from wellposed.rates import relative

    try:
        assert inspect.unwrap(relative).__globals__["find_rate_rule"]("one") is one
        assert relative(nn.Linear(2, 2), torch.randn(1, 2), rule="one", power=3.0).value == 8.0
        assert "one" in rates.rate_rules()
        with pytest.raises(OptionError, match="exists already"):
            rates.rate_rule("one")(one)
    finally:
        del inspect.unwrap(relative).__globals__["_RULES"]["one"]


def test_the_exponent_is_a_power_and_the_seed_changes_the_value():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(1, 4)
    half, whole = relative(model, x), relative(model, x, exponent=1)
    assert whole.value == pytest.approx(half.value**2)
    assert relative(model, x, seed=1).value != half.value
    assert "arXiv 2402.17440" in half.reason
    assert not half.warnings
    assert relative(model, x, samples=2, exponent=8).warnings


def test_forward_keywords_go_to_the_model():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x, *, scale=None):
            return self.b(self.a(x) * scale)

    assert relative(Net(), torch.randn(1, 4), scale=torch.ones(1, 8)).value > 0


class Messages(nn.Module):
    """A layer of a graph network: every edge carries what its first node sends to its second."""

    def __init__(self):
        super().__init__()
        self.send, self.read = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, edges):
        sent = self.send(x)
        return self.read(torch.zeros_like(sent).index_add(0, edges[1], sent[edges[0]]))


def test_samples_that_integers_point_at_are_not_cut():
    edges = torch.tensor([[0, 1, 2, 15], [3, 2, 1, 0]])
    graph = small_graph(Messages(), (torch.randn(16, 6), edges), {}, True)
    assert graph.values[graph.inputs[0]].shape == (16, 6)
    assert relative(Messages(), torch.randn(16, 6), edges).value > 0


def test_constants_of_the_trace_can_be_differentiated():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second(self.first(x) * torch.arange(1.0, 9.0))

    assert relative(Scaled(), torch.randn(4, 8)).value > 0


def test_numbers_that_choose_rows_keep_the_example_s_values():
    class Column(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.first, self.second = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.second(self.first(self.rows(x[:, 0].long())))

    table = torch.randint(5, (4, 2), generator=torch.Generator().manual_seed(0)).float()
    assert relative(Column(), table).value > 0
    assert wp.measure(Column(), table)["rows"].var > 0


@pytest.mark.parametrize("rule", ["maximal_update", "ntk"])
def test_empty_batch_is_refused(rule):
    with pytest.raises(InputError, match="the example has no elements"):
        relative(nn.Linear(6, 3), torch.randn(0, 6), rule=rule)


class Cut(nn.Linear):
    def forward(self, x):
        return super().forward(x)[:0]


@pytest.mark.parametrize("rule", ["maximal_update", "ntk"])
def test_empty_outputs_are_refused(rule):
    with pytest.raises(RateError, match="an output of Cut is empty: there is nothing to follow"):
        relative(Cut(4, 3), torch.randn(2, 4), rule=rule)
    assert isinstance(wp.report(Cut(4, 3), torch.randn(2, 4)), wp.Report)
