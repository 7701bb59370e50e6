"""Activations of whole models are shaped by what their graphs ask, and put back."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.shaping.local import leaky, smooth
from wellposed.shaping.walk import largest

X = torch.randn(8, 32)


def stack(depth, act=nn.ReLU):
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(32, 32), act())))


class Residual(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(depth)])
        self.acts = nn.ModuleList([nn.ReLU() for _ in range(depth)])

    def forward(self, x):
        for layer, act in zip(self.layers, self.acts, strict=True):
            x = x + layer(act(x))
        return x


def composed(depth, slope):
    c = 0.0
    for _ in range(depth):
        c = leaky(c, slope)
    return c


@pytest.mark.parametrize("depth", [12, 40])
def test_orthogonal_inputs_of_a_plain_net_end_as_similar_as_is_wanted(depth):
    shaped = wp.shape_(stack(depth), X, similarity=0.8)
    assert composed(depth, shaped.slope) == pytest.approx(0.8, abs=1e-8)


def test_slopes_are_those_of_the_authors_code():
    """dks 0.1.2, a chain of 30 leaky rectifiers and c_val_0_target 0.9."""
    assert wp.shape_(stack(30), X).slope == pytest.approx(0.3026942, abs=1e-6)


@pytest.mark.slow
def test_curvatures_of_smooth_activations_add_up():
    assert wp.shape_(stack(20, nn.Tanh), X, curvature=0.4).curvature == pytest.approx(0.4 / 20)


class Moved(nn.ELU):
    """One of a user's own, whose numbers do not say all of it."""

    def forward(self, x):
        return super().forward(x - 0.2)


@pytest.mark.slow
def test_activations_that_differ_have_transformations_of_their_own():
    acts = [nn.ELU(0.5), nn.ELU(1.0), nn.ELU(1.0), nn.Softplus(), nn.Softplus(2.0), Moved(), Moved()]
    net = nn.Sequential(*(layer for act in acts for layer in (nn.Linear(32, 32), act)))
    shaped = wp.shape_(net, X)
    for act, place in zip(acts, net[1::2], strict=True):
        expected = smooth(act, shaped.curvature)
        assert (place.input_scale, place.input_shift) == (expected.input_scale, expected.input_shift)
        assert (place.output_scale, place.output_shift) == (expected.output_scale, expected.output_shift)


def test_shortcuts_dilute_what_branches_do():
    """A sum's correlation is the mean of its terms', weighed by their second moments."""
    graph = wp.trace(Residual(3), X)
    seconds = dict.fromkeys(graph.inputs, 1.0) | {node.outputs[0]: 1.0 for node in graph}
    seconds |= {node.outputs[0]: 0.5 for node in graph if node.op_name.startswith("linear")}
    shaped = [node.index for node in graph if node.op_name.startswith("relu")]
    expected, most = 0.0, 0.0
    for _ in range(3):
        branch = leaky(expected, 0.2)
        expected, most = (expected + 0.5 * branch) / 1.5, max(most, branch)
    assert largest(graph, shaped, seconds, 0.0, lambda c: leaky(c, 0.2)) == pytest.approx(most)


def test_branches_that_start_at_zero_leave_nothing_to_shape():
    assert wp.shape_(Residual(40), X).slope is None


@pytest.mark.slow
def test_two_samples_stay_apart_in_real_passes():
    net = nn.Sequential(*(layer for _ in range(30) for layer in (nn.Linear(256, 256), nn.ReLU())))
    x, seen = torch.randn(16, 256), []
    for shape in (False, True):
        if shape:
            wp.shape_(net, x)
        plan = wp.plan(net, x, method="autoinit")
        seen.append(wp.measure(net, x, plan=plan, draws=4)[-1].similarity)
    assert seen[0] > 0.93
    assert seen[1] == pytest.approx(0.9, abs=0.07)  # 0.90 at infinite width, 0.89 at 1,024


def test_a_shallow_net_is_left_as_it_is():
    net = stack(2)
    shaped = wp.shape_(net, X)
    assert shaped.slope is None
    assert not shaped.activations
    assert type(net[1]) is nn.ReLU


def test_batch_norms_keep_inputs_apart_by_themselves():
    layers = [layer for _ in range(30) for layer in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
    assert wp.shape_(nn.Sequential(*layers), X).slope is None


def test_undo_puts_everything_back():
    net = stack(30, nn.PReLU)
    before, modules = copy.deepcopy(net.state_dict()), dict(net.named_modules())
    shaped = wp.shape_(net, X)
    assert net[1].f.weight.item() == pytest.approx(shaped.slope)
    shaped.undo()
    assert dict(net.named_modules()) == modules
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_an_activation_that_is_used_in_two_places_is_shaped_in_both():
    act = nn.ReLU()
    net = nn.Sequential(*itertools.chain.from_iterable((nn.Linear(32, 32), act) for _ in range(30)))
    shaped = wp.shape_(net, X)
    assert composed(30, shaped.slope) == pytest.approx(0.9, abs=1e-8)
    assert len({id(net[index]) for index in range(1, 60, 2)}) == 1


def test_functions_that_no_module_stands_for_are_named():
    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(12)])

        def forward(self, x):
            for layer in self.layers:
                x = functional.relu(layer(x))
            return x

    shaped = wp.shape_(Called(), X)
    assert not shaped.activations
    assert len(shaped.left) == 12
    assert "is called as a function" in str(shaped)


@pytest.mark.parametrize(
    ("bends", "named"),
    [
        (nn.RReLU(), "rrelu (1, 1@2 and 1 more)"),
        (nn.MaxPool1d(3, 1, 1), "max_pool1d (1, 1@2 and 1 more)"),
        (nn.Softmax(-1), "softmax (1, 1@2 and 1 more)"),
        (nn.SELU(), "selu (1, 1@2 and 1 more)"),
    ],
)
def test_what_bends_and_cannot_be_transformed_is_named_once_by_its_kind(bends, named):
    layers = itertools.chain.from_iterable((nn.Linear(32, 32), bends) for _ in range(3))
    shaped = wp.shape_(nn.Sequential(*layers), X)
    (said,) = shaped.left
    assert said.startswith(f"{named} has no transformation")
    assert not shaped.activations
    assert wp.shape_(nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5)), X).left == ()


def test_a_shaped_model_is_exported_with_its_numbers():
    net = stack(12)
    wp.shape_(net, X)
    assert torch.equal(torch.export.export(net, (X,)).module()(X), net(X))


@pytest.mark.slow
def test_a_shaped_model_is_copied_saved_and_loaded():
    net = stack(20, nn.GELU)
    wp.shape_(net, X)
    again = copy.deepcopy(net)
    assert torch.equal(again(X), net(X))
    other = stack(20, nn.GELU)
    with pytest.raises(RuntimeError, match="_extra_state"):
        other.load_state_dict(net.state_dict())
    wp.shape_(other, X, curvature=1.0)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(X), net(X))


def test_a_compiled_model_is_shaped_inside():
    net = stack(30)
    shaped = wp.shape_(torch.compile(net, backend="eager"), X)
    assert composed(30, shaped.slope) == pytest.approx(0.9, abs=1e-8)
    assert len(shaped.activations) == 30
    assert isinstance(net[1], wp.nn.Shaped)


def test_a_model_that_is_in_use_is_refused():
    with pytest.raises(OptionError, match="evaluation mode"):
        wp.shape_(stack(12).eval(), X)
    net = stack(30)
    wp.shape_(net, X)
    with pytest.raises(OptionError, match="shaped already"):
        wp.shape_(net, X)


@pytest.mark.parametrize("given", [{"similarity": 1.5}, {"curvature": 0.0}, {"curvature": math.nan}])
def test_targets_out_of_range_are_refused(given):
    with pytest.raises(OptionError):
        wp.shape_(stack(12), X, **given)


def test_an_error_leaves_the_model_as_it_was(monkeypatch):
    net = stack(12)
    modules = dict(net.named_modules())
    from wellposed.shaping import shape

    real, calls = shape.trace, []

    def traced(*args, **kwargs):
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("interrupted")
        return real(*args, **kwargs)

    monkeypatch.setattr(shape, "trace", traced)
    with pytest.raises(RuntimeError, match="interrupted"):
        wp.shape_(net, X)
    assert dict(net.named_modules()) == modules


@pytest.mark.slow
@pytest.mark.parametrize(("act", "depth"), [(nn.ReLU, 30), (nn.PReLU, 30), (nn.Tanh, 10)])
def test_a_net_that_was_shaped_otherwise_takes_the_activations_of_a_state_dict(act, depth):
    x, nets = torch.randn(8, 64), []
    for similarity, curvature in ((0.9, 0.3), (0.5, 1.0)):
        torch.manual_seed(0)
        net = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(64, 64), act())])
        wp.shape_(net, x, similarity=similarity, curvature=curvature)
        nets.append(net)
    assert not torch.equal(nets[0](x), nets[1](x))
    nets[1].load_state_dict(nets[0].state_dict())
    assert torch.equal(nets[0](x), nets[1](x))
