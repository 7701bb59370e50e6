"""Clipping counts what parameters carry: held against torch on the model that has the factors in its forward pass."""

import copy
import math

import pytest
import torch
from tests.ranks import on_two_ranks
from tests.versions import needs_newer_torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import wellposed as wp
from wellposed.errors import OptionError

CONSTANTS = (0.3, 0.125)
NORM_TYPES = (2.0, 1.0, math.inf)
X = torch.randn(32, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randn(32, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


class Net(nn.Module):
    """Two residual branches, whose last weights have a factor each in the forward pass, or carry it."""

    def __init__(self, factors):
        super().__init__()
        self.stem, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.inner = nn.ModuleList(nn.Linear(16, 16) for _ in CONSTANTS)
        self.last = nn.ModuleList(nn.Linear(16, 16) for _ in CONSTANTS)
        self.factors = factors

    def forward(self, x):
        x = self.stem(x)
        for inner, last, factor in zip(self.inner, self.last, self.factors, strict=True):
            x = x + factor * last(9.0 * torch.tanh(inner(x)))  # the largest gradients are the ends'
        return self.head(x)


def two():
    """Return one function written twice: with explicit factors, and with these carried by the last weights."""
    torch.manual_seed(0)
    explicit = Net(CONSTANTS).double()
    carrying = copy.deepcopy(explicit)
    carrying.factors = (1.0, 1.0)
    with torch.no_grad():
        for last, constant in zip(carrying.last, CONSTANTS, strict=True):
            for parameter in last.parameters():
                parameter.mul_(constant)
    return explicit, carrying


def groups_of(net):
    rest = [*net.stem.parameters(), *net.inner.parameters(), *net.head.parameters()]
    ends = [{"params": list(e.parameters()), "carried": c} for e, c in zip(net.last, CONSTANTS, strict=True)]
    return [{"params": rest}, *ends]


def backward(net, scale=1.0):
    (scale * nn.functional.mse_loss(net(X.to(net.stem.weight.dtype)), Y.to(net.stem.weight.dtype))).backward()


def gradients(net):
    """Return the gradients as the explicit model has them."""
    ends = {id(p): c for e, c in zip(net.last, CONSTANTS, strict=True) for p in e.parameters()}
    carries = net.factors != CONSTANTS
    return [p.grad * (ends.get(id(p), 1.0) if carries else 1.0) for p in net.parameters()]


def worst(ours, theirs):
    return max(float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("share", [0.1, 10.0])
def test_it_is_torchs_clip_of_the_explicit_model(share, norm_type, foreach):
    explicit, carrying = two()
    backward(explicit)
    backward(carrying)
    before = gradients(explicit)
    assert worst(gradients(carrying), before) < 1e-12
    norm = float(nn.utils.get_total_norm([p.grad for p in explicit.parameters()], norm_type))
    theirs = nn.utils.clip_grad_norm_(explicit.parameters(), share * norm, norm_type, foreach=foreach)
    ours = wp.clip_grad_norm_(groups_of(carrying), share * norm, norm_type, foreach=foreach)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
    assert worst(gradients(carrying), gradients(explicit)) < 1e-12
    clipped = share < 1
    assert (worst(gradients(carrying), before) > 0.5) == clipped
    # torch's own on the model that carries is not the same
    _, plain = two()
    backward(plain)
    naive = nn.utils.clip_grad_norm_(plain.parameters(), share * norm, norm_type, foreach=foreach)
    assert abs(float(naive) / float(theirs) - 1) > 1e-3
    assert (worst(gradients(plain), gradients(explicit)) > 1e-3) == clipped


def test_whole_trainings_are_the_same():
    explicit, carrying = two()
    first = torch.optim.SGD(explicit.parameters(), lr=0.05, momentum=0.9)
    groups = groups_of(carrying)
    second = torch.optim.SGD(
        [{**group, "lr": 0.05 * group.get("carried", 1.0) ** 2} for group in groups], lr=0.05, momentum=0.9
    )
    for step in range(10):
        for net, optimizer in ((explicit, first), (carrying, second)):
            optimizer.zero_grad()
            backward(net, 1.0 + step % 3)
        nn.utils.clip_grad_norm_(explicit.parameters(), 0.5)
        wp.clip_grad_norm_(second, 0.5)
        first.step()
        second.step()
    assert worst([carrying(X)], [explicit(X)]) < 1e-12


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_nothing_is_carried_it_has_torchs_bits(norm_type, dtype):
    one = Net((1.0, 1.0)).to(dtype)
    other = copy.deepcopy(one)
    for net in (one, other):
        backward(net)
    named = [{"params": list(other.parameters())[:3], "carried": 1.0}, {"params": list(other.parameters())[3:]}]
    theirs = nn.utils.clip_grad_norm_(one.parameters(), 0.01, norm_type)
    ours = wp.clip_grad_norm_(named, 0.01, norm_type)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_an_optimizer_or_several_or_a_generator_is_taken():
    _, net = two()
    backward(net)
    groups = groups_of(net)
    expected = wp.clip_grad_norm_(groups, math.inf)
    kept = [p.grad.clone() for p in net.parameters()]
    one, other = torch.optim.SGD(groups[:2], lr=0.1), torch.optim.AdamW(groups[2:], lr=0.1)
    assert wp.clip_grad_norm_([*one.param_groups, *other.param_groups], math.inf) == expected
    assert wp.clip_grad_norm_((group for group in groups), "inf") == expected
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), kept, strict=True))
    assert wp.clip_grad_norm_(torch.optim.SGD(groups, lr=0.1), 0.5) == expected
    again = wp.clip_grad_norm_(torch.optim.SGD(groups, lr=0.1), math.inf)
    assert float(again) == pytest.approx(0.5, rel=1e-4)


def test_without_gradients_it_is_zero():
    _, net = two()
    assert wp.clip_grad_norm_(groups_of(net), 1.0) == nn.utils.clip_grad_norm_(net.parameters(), 1.0) == 0.0
    assert wp.clip_grad_norm_([], 1.0) == 0.0
    backward(net)
    net.stem.weight.grad = None
    wp.clip_grad_norm_(groups_of(net), 1e-3)
    assert net.stem.weight.grad is None


def test_norms_that_are_not_finite_are_returned_as_by_torch():
    for constants in ((1.0, 1.0), CONSTANTS):
        _, net = two()
        groups = [{**g, "carried": c} for g, c in zip(groups_of(net), (1.0, *constants), strict=True)]
        backward(net)
        net.last[0].weight.grad[0, 0] = math.nan
        with pytest.raises(RuntimeError, match="non-finite"):
            wp.clip_grad_norm_(groups, 1.0, error_if_nonfinite=True)
        assert torch.isfinite(net.stem.weight.grad).all()
        assert wp.clip_grad_norm_(groups, 1.0).isnan()
        assert net.stem.weight.grad.isnan().all()  # as torch does


def test_sparse_gradients_are_what_torch_makes_of_them():
    def outcome(clip):
        table = nn.Embedding(6, 3, sparse=True)
        with torch.no_grad():
            table.weight.fill_(1.0)
        table(torch.tensor([1, 1, 4])).square().sum().backward()
        try:
            return float(clip([table.weight])), table.weight.grad.to_dense()
        except (NotImplementedError, RuntimeError) as error:
            return type(error)

    theirs = outcome(lambda ps: nn.utils.clip_grad_norm_(ps, 0.5))
    for carried in (1.0, 0.5):
        ours = outcome(lambda ps, c=carried: wp.clip_grad_norm_([{"params": ps, "carried": c}], 0.5))
        if isinstance(theirs, type):
            assert ours is theirs
        elif carried == 1.0:
            assert ours[0] == theirs[0]
            assert torch.equal(ours[1], theirs[1])


def test_what_is_no_optimizer_and_no_norm_is_refused():
    _, net = two()
    with pytest.raises(OptionError, match=r"dicts with 'params'\), received Parameter; give optimizer or"):
        wp.clip_grad_norm_(net.parameters(), 1.0)
    for what, kind in ((net.stem.weight, "Parameter"), ({"params": []}, "dict"), (3, "int"), ("sgd", "str")):
        with pytest.raises(OptionError, match=f"received {kind}; give optimizer"):
            wp.clip_grad_norm_(what, 1.0)
    groups = groups_of(net)
    with pytest.raises(OptionError, match=r"a parameter of shape \(16, 16\) occurs twice .*group '3'"):
        wp.clip_grad_norm_([*groups, groups[1]], 1.0)
    for wrong in (0.0, -1.0, math.nan, math.inf, "half", None, True):
        named = [groups[0], {**groups[1], "name": "ends", "carried": wrong}]
        with pytest.raises(OptionError, match=r"group 'ends' has 'carried': .*must be a finite number above 0"):
            wp.clip_grad_norm_(named, 1.0)
    for wrong in (-1.0, math.nan, "many", None):
        with pytest.raises(OptionError, match=r"max_norm must be a number of at least 0, received"):
            wp.clip_grad_norm_(groups, wrong)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(OptionError, match=r"norm_type must be a number above 0, received"):
            wp.clip_grad_norm_(groups, 1.0, wrong)


# ---- sharded --------------------------------------------------------------------------------------------------------


def _work(rank):
    found = {}
    for norm_type in NORM_TYPES:
        explicit, carrying = two()
        for net in (explicit, carrying):
            for branch in (*net.inner, *net.last):
                fully_shard(branch)
            fully_shard(net)
            backward(net)
        assert isinstance(carrying.last[0].weight.grad, DTensor)
        theirs = nn.utils.clip_grad_norm_(explicit.parameters(), 0.05, norm_type)
        ours = wp.clip_grad_norm_(groups_of(carrying), 0.05, norm_type)
        whole = [[g.full_tensor() for g in gradients(net)] for net in (carrying, explicit)]
        found[norm_type] = (type(ours) is type(theirs), ours.full_tensor(), theirs.full_tensor(), worst(*whole))
    return found


@pytest.mark.slow
@needs_newer_torch("FSDP2 does not run on CPU")
def test_shards_count_as_the_whole(tmp_path):
    whole, _ = two()
    backward(whole)
    for found in on_two_ranks(_work, tmp_path):
        for norm_type, (alike, ours, theirs, difference) in found.items():
            assert alike
            expected = nn.utils.get_total_norm([p.grad for p in whole.parameters()], norm_type)
            assert float(ours) == pytest.approx(float(expected), rel=1e-12)
            assert float(theirs) == pytest.approx(float(expected), rel=1e-12)
            assert difference < 1e-12
