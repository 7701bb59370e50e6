"""Writing plans: what is written, what it depends on, and that a plan that does not fit changes nothing."""

import copy
import itertools
import math
import signal
import threading
import time

import numpy as np
import pytest
import torch
from tests.plans.models import Tied, assert_same, assert_untouched, net, plan_for, snapshot, values
from tests.versions import needs_newer_torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.testing._internal.two_tensor import TwoTensor

from wellposed.alone import alone
from wellposed.errors import OptionError, PlanError, UnsupportedError
from wellposed.interruption import postponed_interruption
from wellposed.plans import Drawn, Plan, draw
from wellposed.plans.streams import Stream

# ---- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform", "orthogonal"])
def test_a_second_call_gives_the_same_bits(distribution):
    model = net()
    plan = plan_for(model, distribution)
    plan.apply_(model)
    first = values(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    plan.apply_(model)
    assert_same(values(model), first)
    assert first["0.weight"].std() > 0


def test_writing_changes_only_the_values_of_parameters():
    model = net()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model.eval()
    identities = {name: id(parameter) for name, parameter in model.named_parameters()}
    pointers = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    rng = torch.random.get_rng_state()
    plan_for(model).apply_(model)
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == identities
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == pointers
    assert all(torch.equal(buffers[name], buffer) for name, buffer in model.named_buffers())
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert not model.training
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), rng)


def test_autograd_notices_the_writing():
    model = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    loss = model(x).square().sum()
    plan_for(model).apply_(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_draw_gives_what_is_written():
    model = net()
    plan = plan_for(model)
    plan.apply_(model)
    assert_same(draw(plan), values(model))
    assert not torch.equal(draw(plan, seed=1)["0.weight"], model[0].weight)


def test_another_seed_gives_other_numbers():
    one, two = net(), net()
    plan_for(one, seed=0).apply_(one)
    plan_for(two, seed=1).apply_(two)
    assert not torch.equal(one[0].weight, two[0].weight)


@pytest.mark.slow
def test_subset_and_order_do_not_matter():
    model, whole = net(), net()
    plan = plan_for(model)
    plan.apply_(whole)
    for name in reversed(list(plan.prescriptions)):
        plan.apply_(model, only=name)
    assert_same(values(model), values(whole))
    backwards = plan.model_copy(update={"prescriptions": dict(reversed(plan.prescriptions.items()))})
    other = net()
    backwards.apply_(other)
    assert_same(values(other), values(whole))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_dtype_are_the_same_numbers_rounded(dtype):
    model = net()
    plan = plan_for(model)
    other = copy.deepcopy(model).to(dtype)
    plan.apply_(model)
    plan.apply_(other)
    assert {parameter.dtype for parameter in other.parameters()} == {dtype}
    assert_same(values(other), {name: value.to(dtype) for name, value in values(model).items()})


EVERY_KIND = {
    "truncated_normal": {},
    "orthogonal": {"0.weight": {"distribution": "orthogonal"}},
    "by channel": {"0.weight": {"channel_std": tuple(0.5 + i for i in range(8))}},
    "a constant by channel": {"0.bias": {"output_axis": 0, "channel_std": tuple(0.5 + i for i in range(8))}},
    "rescaled": {"0.weight": {"distribution": "rescale", "std": 0.4}},
    "rescaled by channel": {
        "0.weight": {"distribution": "rescale", "std": 0.4, "channel_std": tuple(0.5 + i for i in range(8))}
    },
    "centred": {"0.bias": {"distribution": "centering", "constant": None, "weight": "0.weight", "value": 0.7}},
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_default_dtype_and_device_do_not_matter(kind):
    model = net()
    other = copy.deepcopy(model)
    plan = plan_for(model, **EVERY_KIND[kind])
    plan.apply_(model)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            plan.apply_(other)
            if not kind.startswith("rescaled"):
                assert_same(draw(plan), values(model))
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same(values(other), values(model))


def test_memory_layout_does_not_matter():
    model = net()
    plan = plan_for(model)
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert not other[0].weight.is_contiguous()
    plan.apply_(model)
    plan.apply_(other)
    assert_same(values(other), values(model))
    assert not other[0].weight.is_contiguous()


def test_only_and_skip_select_by_pattern():
    model = net()
    before = values(model)
    plan_for(model).apply_(model, only=["0.*", "3.weight"], skip="*.bias")
    written = {name for name, value in values(model).items() if not torch.equal(value, before[name])}
    assert written == {"0.weight", "3.weight"}


def test_kept_parameters_keep_their_bits():
    model = net()
    before = values(model)
    kept = {"action": "keep", "distribution": "default", "std": None}
    plan_for(model, **{"0.weight": kept}).apply_(model)
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[3].weight, before["3.weight"])


@pytest.mark.parametrize("kind", ["linear", "grouped", "transposed"])
def test_centering_cancels_a_constant_mean(kind):
    """E[w·x + b] over x of mean c is 0 for every output: b = -c times the sums over the inputs."""
    if kind == "linear":
        model, x, axis, groups = nn.Linear(50, 7), torch.full((1, 50), 0.4), 0, 1
    elif kind == "grouped":
        model, x, axis, groups = nn.Conv2d(8, 6, 3, groups=2), torch.full((1, 8, 3, 3), 0.4), 0, 2
    else:
        model, x, axis, groups = nn.ConvTranspose2d(8, 6, 1, groups=2), torch.full((1, 8, 3, 3), 0.4), 1, 2
    centred = {"distribution": "centering", "weight": "weight", "value": 0.4, "constant": None}
    plan = plan_for(model, weight={"output_axis": axis, "groups": groups}, bias=centred)
    plan.apply_(model)
    assert model.bias.abs().max() > 0.01
    torch.testing.assert_close(model(x), torch.zeros_like(model(x)), atol=1e-6, rtol=0)
    assert torch.equal(draw(plan)["bias"], model.bias)


def test_centering_uses_the_weight_as_it_is_when_that_is_kept():
    model = nn.Linear(4, 3)
    centred = {"distribution": "centering", "weight": "weight", "value": 2.0, "constant": None}
    kept = {"action": "keep", "distribution": "keep", "std": None}
    plan = plan_for(model, weight=kept, bias=centred)
    plan.apply_(model)
    torch.testing.assert_close(model.bias, -2.0 * model.weight.sum(1))
    with pytest.raises(PlanError, match=r"'bias' is centred on 'weight', which the plan leaves alone; pass its values"):
        draw(plan)
    assert torch.equal(draw(plan, current={"weight": model.weight})["bias"], model.bias)


# ---- ties, parametrizations, wrappers -------------------------------------------------------------------------------


def test_tied_parameters_are_written_once_and_stay_tied():
    model = Tied()
    plan = plan_for(model)
    assert plan.prescriptions["head.weight"].tied_to == "embed.weight"
    plan.apply_(model)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.head.weight, draw(plan)["embed.weight"])


def test_skip_on_either_name_protects_a_tied_tensor():
    for name in ("head.*", "embed.*"):
        model = Tied()
        before = model.embed.weight.clone()
        plan_for(model).apply_(model, skip=name)
        assert torch.equal(model.embed.weight, before)
        plan_for(model).apply_(model, only=name)
        assert not torch.equal(model.embed.weight, before)


def test_modules_used_twice_are_tied_under_both_names():
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    plan = plan_for(model)
    assert plan.prescriptions["2.weight"].tied_to == "0.weight"
    plan.apply_(model)
    assert torch.equal(shared.weight, draw(plan)["0.weight"])


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_parametrizations_are_written_through_their_originals(wrap):
    model = nn.Sequential(wrap(nn.Linear(4, 3)))
    plan = plan_for(model)
    plan.apply_(model)
    assert_same(values(model), draw(plan))
    assert "0.weight" not in plan.prescriptions


def test_cached_parametrizations_are_computed_anew():
    model = parametrizations.weight_norm(nn.Linear(4, 3))
    plan = plan_for(model)
    with parametrize.cached():
        stale = model.weight.detach().clone()
        plan.apply_(model)
        fresh = model.weight.detach().clone()
    assert not torch.equal(stale, fresh)
    assert torch.equal(fresh, model.weight)


def test_recurrent_modules_still_use_what_is_written():
    model = nn.LSTM(3, 4)
    plan_for(model).apply_(model)
    twin = nn.LSTM(3, 4)
    twin.load_state_dict(model.state_dict())
    x = torch.randn(5, 1, 3)
    assert torch.equal(model(x)[0], twin(x)[0])


class Holder(nn.Module):
    """The user's own attribute called ``module`` is part of the name."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(3, 3)


@pytest.mark.slow
def test_prefixes_of_wrappers_are_seen_through_at_any_depth():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    plain = nn.Sequential(Holder(), nn.Linear(3, 2))
    plan = plan_for(plain)
    assert list(plan.prescriptions) == ["0.module.weight", "0.module.bias", "1.weight", "1.bias"]
    wrapped = nn.DataParallel(
        torch.compile(nn.Sequential(checkpoint_wrapper(Holder()), torch.compile(nn.Linear(3, 2))))
    )
    assert "module._orig_mod.0._checkpoint_wrapped_module.module.weight" in dict(wrapped.named_parameters())
    plan.apply_(plain)
    plan.apply_(wrapped)
    assert_same(values(wrapped), values(plain))


@pytest.fixture
def process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_a_distributed_data_parallel_model_is_written(process_group):
    model = net()
    plan = plan_for(model)
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    plan.apply_(wrapped)
    assert_same(values(wrapped), draw(plan))


@pytest.fixture
def last_of_three_ranks():
    """One rank of three, whose messages go nowhere: what a rank needs from another it would not get."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=2, world_size=3)
    yield
    torch.distributed.destroy_process_group()


def test_every_rank_writes_its_shard_of_the_same_numbers(last_of_three_ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh("cpu", (3,))
    model = net()
    centred = {"distribution": "centering", "weight": "3.weight", "value": 0.3, "constant": None}
    plan = plan_for(model, **{"3.bias": centred})
    expected = draw(plan)
    for name, placement in (("0", Shard(0)), ("2.0", Shard(1)), ("3", Replicate())):
        module = model.get_submodule(name)
        for own, parameter in list(module.named_parameters()):
            where = Shard(0) if parameter.ndim == 1 and isinstance(placement, Shard) else placement
            shard = DTensor.from_local(parameter.detach(), mesh, [Replicate()], run_check=False).redistribute(
                placements=[where]
            )
            setattr(module, own, nn.Parameter(shard))
    plan.apply_(model)
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            (where,) = parameter.placements
            whole = expected[name]
            if isinstance(where, Shard):
                size = whole.shape[where.dim]
                before = min(size, 2 * math.ceil(size / 3))
                whole = whole.narrow(where.dim, before, size - before)
            assert torch.equal(parameter.to_local(), whole), name


def test_a_fully_sharded_model_is_written(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    plan = plan_for(model)
    sharded = copy.deepcopy(model)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    plan.apply_(sharded)
    assert_same({name: p.full_tensor() for name, p in sharded.named_parameters()}, draw(plan))


@needs_newer_torch("FSDP2 does not run on CPU")
def test_a_fully_sharded_model_on_meta_is_written(process_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model, other = net(), net()
    plan = plan_for(model)
    for sharded in (model, other):
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    plan.apply_(model, materialize=True)
    other.to_empty(device="cpu")
    other[1].reset_running_stats()
    plan.apply_(other)
    for sharded in (model, other):
        assert_same({name: p.full_tensor() for name, p in sharded.named_parameters()}, draw(plan))
        with torch.no_grad():
            assert sharded(torch.ones(2, 3, 10, 10)).isfinite().all()


@pytest.mark.filterwarnings("ignore:FSDP:UserWarning", "ignore:.*FSDP.*:FutureWarning")
@pytest.mark.parametrize("original", [False, True])
def test_flat_shards_are_refused(process_group, original):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = net()
    plan = plan_for(model)
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=original)
    with pytest.raises(UnsupportedError, match=r"flat shards \(FSDP1\).*before wrapping, or .*fully_shard"):
        plan.apply_(wrapped)


# ---- what does not fit ----------------------------------------------------------------------------------------------


def assert_refused(model, plan, error, message, **options):
    before = snapshot(model)
    with pytest.raises(error, match=message):
        plan.apply_(model, **options)
    assert_untouched(model, before)


def test_missing_and_extra_parameters_and_other_shapes_are_named():
    plan = plan_for(net())
    model = net()
    model[3] = nn.Linear(6, 4)
    assert_refused(
        model, plan, PlanError, r"does not fit Sequential: '3.weight' has shape \(4, 6\), planned as \(5, 6\); "
    )
    model = net()
    model.append(nn.Linear(5, 5))
    assert_refused(model, plan, PlanError, r"2 parameter\(s\) that the plan does not know: '4.weight', '4.bias'")
    model = net()[:3]
    assert_refused(model, plan, PlanError, r"2 parameter\(s\) that the model lacks: '3.weight', '3.bias'")
    assert_refused(nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)]), plan, PlanError, "12 parameter.*and 7 more")


@pytest.mark.parametrize("option", ["only", "skip"])
def test_patterns_that_match_nothing_are_refused(option):
    model = net()
    message = rf"{option}='3.weigth' matches no parameter; did you mean '3.weight'"
    assert_refused(model, plan_for(model), PlanError, message, **{option: ["0.*", "3.weigth"]})


def test_frozen_parameters_are_written_only_when_asked():
    model = net()
    model[0].requires_grad_(False)
    plan = plan_for(model)
    assert_refused(model, plan, PlanError, r"2 parameter\(s\) .*are frozen .*'0.weight', '0.bias'; pass frozen=True")
    plan.apply_(model, skip="0.*")
    plan.apply_(model, frozen=True)
    assert_same(values(model), draw(plan))
    assert not model[0].weight.requires_grad


def test_ties_must_be_those_of_the_plan():
    loose = Tied()
    plan = plan_for(loose)
    loose.head.weight = nn.Parameter(loose.head.weight.clone())
    assert_refused(
        loose, plan, PlanError, "'head.weight' is planned as tied to 'embed.weight', but they are two tensors"
    )
    assert_refused(
        Tied(), plan_for(loose), PlanError, "'embed.weight' and 'head.weight' are one tensor .*planned apart"
    )


def one(parameter, shape=None):
    model = nn.Module()
    model.w = parameter
    said = Drawn(name="w", shape=shape or tuple(parameter.shape), distribution="normal", std=1.0, reason="test")
    return model, Plan(method="test", seed=0, model="Module", prescriptions={"w": said})


@pytest.mark.filterwarnings("ignore:.*(Sparse|quantiz).*")
@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (lambda: nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64)), "'w' is complex: .*skip='w'"),
        (lambda: nn.Parameter(torch.zeros(2, 2).to_sparse()), r"'w' is sparse \(torch.sparse_coo\)"),
        (lambda: nn.Parameter(torch.zeros(2, 2, dtype=torch.uint8), requires_grad=False), "of dtype torch.uint8"),
        (
            lambda: nn.Parameter(torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), requires_grad=False),
            "'w' is quantised",
        ),
        (lambda: nn.Parameter(torch.zeros(1, 2).expand(3, 2)), "'w' is an expanded view"),
    ],
)
def test_tensors_that_hold_no_plain_numbers_are_refused(parameter, message):
    model, plan = one(parameter())
    with pytest.raises(UnsupportedError, match=message):
        plan.apply_(model, frozen=True)


def test_lazy_parameters_are_refused():
    model, plan = one(nn.UninitializedParameter(), shape=(2, 2))
    with pytest.raises(UnsupportedError, match=r"'w' is lazy: .*run the model once"):
        plan.apply_(model)


def test_two_parameters_in_one_memory_are_refused():
    model = nn.Module()
    model.a = nn.Parameter(torch.zeros(4, 4))
    model.b = nn.Parameter(model.a.data[2:])
    assert_refused(model, plan_for(model), PlanError, "'a' and 'b' share memory but are two parameters")
    plan_for(model).apply_(model, skip="b")
    model.b = nn.Parameter(torch.zeros(8, 4)[4:])
    plan_for(model).apply_(model)


def test_one_memory_under_two_storages_is_seen():
    model, numbers = nn.Linear(4, 3), np.zeros(12, dtype=np.float32)
    model.weight = nn.Parameter(torch.from_numpy(numbers).view(3, 4))
    model.bias = nn.Parameter(torch.from_numpy(numbers[4:7]))
    assert_refused(model, plan_for(model), PlanError, "'weight' and 'bias' share memory but are two parameters")


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.zeros(40).as_strided((3, 4), (2, 1)), r"'weight' is a view of strides \(2, 1\) on itself"),
        (torch._neg_view(torch.zeros(3, 4)), "'weight' is a view that is conjugated or negated"),
        (TwoTensor(torch.zeros(3, 4), torch.zeros(3, 4)), r"'weight' is a tensor subclass \(TwoTensor\)"),
    ],
)
def test_parameters_that_are_no_plain_memory_are_refused(weight, message):
    model = nn.Linear(4, 3)
    plan, model.weight = plan_for(model), nn.Parameter(weight)
    before = model.bias.detach().clone()
    with pytest.raises(UnsupportedError, match=message):
        plan.apply_(model)
    assert torch.equal(model.bias, before)


def test_neighbours_in_one_memory_are_fine():
    flat = torch.zeros(20)
    model = nn.Module()
    model.a = nn.Parameter(flat[:12].view(3, 4))
    model.b = nn.Parameter(flat[12:].view(2, 4))
    plan = plan_for(model)
    plan.apply_(model)
    assert_same(values(model), draw(plan))


IMPOSSIBLE = {
    "groups": ({"distribution": "orthogonal", "groups": 4}, {}, r"'2.weight' .*orthogonal in 4 groups, into which"),
    "centred": (
        {},
        {"distribution": "centering", "weight": "0.weight", "value": 1.0},
        r"'2.bias' .*centred on '0.weight'",
    ),
    "std": ({"std": 1e39}, {}, r"'2.weight' is planned with .*std 1e\+39: numbers up to .*float32 does not hold"),
    "mean": ({"mean": 1e300}, {}, r"'2.weight' is planned with .*mean 1e\+300"),
    "constant": ({}, {"constant": -1e39}, r"'2.bias' is planned with constant -1e\+39"),
    "sums": ({}, {"distribution": "centering", "weight": "2.weight", "value": 1e39}, r"'2.bias' .* numbers up to"),
    "zero": ({"std": 0.0, "channel_std": (1.0, 1.0, 1.0)}, {}, r"'2.weight' is to be rescaled, but it is zero"),
    "rounds to zero": ({"std": 1e-60, "channel_std": (1.0, 1.0, 1.0)}, {}, r"'2.weight' is to be rescaled, but it is"),
    "channels": (
        {"channel_std": (3e38, 1.0, 1.0)},
        {},
        r"channels of root mean square up to 3e\+38: numbers up to 6.7",
    ),
    "before channels": (
        {"std": 1e300, "channel_std": (1.0, 1.0, 1.0)},
        {},
        r"up to 2.27e\+300, which float32 does not",
    ),
    "complex": ({"distribution": "complex_normal"}, {}, r"'2.weight' is planned complex normal, and is torch.float32"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_nothing_is_written_of_a_plan_that_cannot_be_carried_out(what):
    of_weight, of_bias, message = IMPOSSIBLE[what]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    of_bias = {**({"constant": None} if "weight" in of_bias else {}), **of_bias}
    plan = plan_for(model, **{"2.weight": of_weight, "2.bias": of_bias})
    assert_refused(model, plan, PlanError, message)


def test_a_dtype_sets_its_own_limit():
    model = nn.Linear(4, 3)
    plan = plan_for(model, weight={"std": 3e4}, bias={"constant": 7e4})
    plan.apply_(model)
    assert_refused(
        model.half(), plan, PlanError, r"'weight' is planned with .*, which float16 does not hold \(up to 6.55e\+04\)"
    )
    assert_refused(model, plan, PlanError, "'bias' is planned with constant 7e\\+04", skip="weight")


@pytest.mark.parametrize(
    ("values_of", "std", "message"),
    [
        ([0.0, 0.0], 1.0, "is to be rescaled, but it is zero"),
        ([1e-300, 1e-200], 1.0, "is to be rescaled, but it is zero"),
        ([math.nan, 1.0], 1.0, "is to be rescaled, but it holds NaN or infinities"),
        ([math.inf, 1.0], 1.0, "is to be rescaled, but it holds NaN or infinities"),
        ([1.0, 0.5], 1.7e308, "numbers up to inf, which float64 does not hold"),
    ],
)
def test_a_parameter_that_cannot_be_rescaled_leaves_all_as_it_was(values_of, std, message):
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(2, 1)).double()
    model[1].weight.data = torch.tensor([values_of]).double()
    plan = plan_for(model, **{"1.weight": {"distribution": "rescale", "std": std}})
    before = model[0].weight.detach().clone()
    with pytest.raises(PlanError, match=f"'1.weight' .*{message}"):
        plan.apply_(model)
    assert torch.equal(model[0].weight, before)


def test_numbers_that_are_rescaled_are_held_against_their_own_size():
    """A bound by their number alone would refuse them."""
    model = nn.Linear(100, 1, dtype=torch.float16)
    plan_for(model, weight={"distribution": "rescale", "std": 2e4}).apply_(model)
    assert model.weight.detach().double().square().mean().sqrt() == pytest.approx(2e4, rel=1e-3)


CENTRED = {"distribution": "centering", "weight": "2.weight", "value": 1.0, "constant": None}


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.full((3, 5), 1e38), "numbers up to 5e\\+38"),
        (torch.full((3, 5), math.nan), "numbers up to nan"),
        (torch.eye(3, 5).to_sparse(), "is centred on '2.weight', which is sparse"),
        (torch.eye(3, 5, dtype=torch.complex64), "is centred on '2.weight', which is complex"),
    ],
)
def test_biases_are_centred_on_numbers_that_can_be_summed(weight, message):
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    plan = plan_for(model, **{"2.bias": CENTRED})
    model[2].weight = nn.Parameter(weight)
    before = model[0].weight.detach().clone()
    with pytest.raises((PlanError, UnsupportedError), match=f"'2.bias' .*{message}"):
        plan.apply_(model, skip="2.weight")
    assert torch.equal(model[0].weight, before)


def test_an_empty_bias_is_centred_on_an_empty_weight():
    model = nn.Sequential(nn.Linear(4, 5))
    model[0].weight, model[0].bias = nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.empty(0))
    plan_for(model, **{"0.bias": CENTRED | {"weight": "0.weight"}}).apply_(model)
    assert model[0].bias.shape == (0,)


@pytest.mark.parametrize("device", ["cuda:77", "nosuch", "meta"])
def test_devices_that_are_not_there_are_refused(device):
    model = nn.Linear(4, 3, device="meta")
    with pytest.raises(OptionError, match=f"materialize='{device}' (is no device here|allocates nothing)"):
        plan_for(model).apply_(model, materialize=device)
    assert model.weight.is_meta


def test_what_goes_wrong_in_the_last_parameter_is_raised(monkeypatch):
    model = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(100, 101, bias=False))
    plan, fill = plan_for(model), Stream.numbers

    def fails(stream, bits, out):
        if out.size == 101 * 100:
            raise MemoryError("no room for numbers")
        fill(stream, bits, out)

    monkeypatch.setattr(Stream, "numbers", fails)
    with pytest.raises(MemoryError, match="no room"):
        plan.apply_(model)


# ---- interruptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2, 5, 9, 12])
def test_an_interruption_leaves_each_parameter_old_or_new(monkeypatch, at):
    """Ctrl-C while a certain block is drawn; a parameter that has begun is finished."""
    model = nn.Sequential(*[nn.Linear(size, 400) for size in (400, 3, 400, 1000, 9, *[400] * 8)])
    plan = plan_for(model)
    new = draw(plan)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    fill, calls = Stream.numbers, itertools.count()

    def interrupted(*args):
        fill(*args)
        if next(calls) == at:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    monkeypatch.setattr(Stream, "numbers", interrupted)
    with pytest.raises(KeyboardInterrupt) as interruption:
        plan.apply_(model)
    monkeypatch.undo()
    written = [torch.equal(p, new[name]) for name, p in model.named_parameters()]
    old = [bool((p == 7.0).all()) for p in model.parameters()]
    assert all(one != other for one, other in zip(written, old, strict=True))
    assert 0 < sum(written) < 26
    said = f"{sum(written)} of 26 parameters are written, the others hold what they held; call it again"
    assert said in str(interruption.value)
    plan.apply_(model)
    assert_same(values(model), new)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_waits_for_a_thread_is_left_alone(monkeypatch):
    """Also of the last few parameters, which have all been handed to the threads."""
    model = nn.Sequential(*[nn.Linear(300, 300, bias=False) for _ in range(4)])
    plan = plan_for(model)
    fill = Stream.numbers

    def interrupted(*args):
        monkeypatch.undo()
        time.sleep(0.3)  # the main thread has handed over all of them
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.5)  # and hears of it
        fill(*args)

    monkeypatch.setattr(Stream, "numbers", interrupted)
    monkeypatch.setattr("wellposed.plans.filling._WORKERS", 1)
    with pytest.raises(KeyboardInterrupt, match="1 of 4 parameters are written"):
        plan.apply_(model)


@pytest.mark.slow
def test_an_interruption_is_obeyed_within_a_second():
    """The plan takes longer, and much of it has not begun."""
    model = nn.Sequential(*[nn.Linear(3000, 3000) for _ in range(40)])
    plan = plan_for(model)
    timer = threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
    timer.start()
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt, match=r"\d+ of 80 parameters are written"):
        plan.apply_(model)
    assert time.perf_counter() - begin < 1


def test_handlers_of_the_callers_own_stay():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        model = nn.Linear(3, 3)
        with alone(), postponed_interruption() as interrupted:
            signal.raise_signal(signal.SIGINT)
            plan_for(model).apply_(model)
        assert seen == [1]
        assert not interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


# ---- on meta --------------------------------------------------------------------------------------------------------


def test_models_on_meta_are_refused_with_the_two_ways_out():
    with torch.device("meta"):
        model = net()
    with pytest.raises(PlanError, match=r"8 parameter\(s\) .*on the meta device: '0.weight'") as error:
        plan_for(model).apply_(model)
    assert "to_empty" in str(error.value)
    assert "materialize=True" in str(error.value)
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_does_not_matter():
    model = net()
    plan = plan_for(model)
    plan.apply_(model)
    other = net().cuda()
    plan.apply_(other)
    assert_same({name: value.cpu() for name, value in values(other).items()}, values(model))
