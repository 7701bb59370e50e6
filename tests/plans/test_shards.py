"""Sharded parameters: each rank draws what it holds, and gets the numbers of a single process."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.plans.models import plan_for
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from wellposed.errors import UnsupportedError
from wellposed.plans import Centering, Constant, Drawn, Plan, draw
from wellposed.plans.filling import finish, start_, workers
from wellposed.plans.places import Runs
from wellposed.plans.shards import local_parts
from wellposed.plans.streams import BLOCK, Stream


@contextmanager
def as_rank(rank: int, ranks: int) -> Iterator[None]:
    """One rank of several, whose messages go nowhere: what a rank needs from another it would not get."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def mesh_of(*sizes: int) -> DeviceMesh:
    """A mesh of this rank's own: DTensor remembers meshes that are alike, whatever rank saw them."""
    names = tuple(f"rank {torch.distributed.get_rank()} axis {axis}" for axis in range(len(sizes)))
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def sharded(whole: torch.Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    replicated = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(placements=placements)


PLACEMENTS: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]] = {
    "rows": ((4,), (Shard(0),)),
    "columns": ((3,), (Shard(1),)),
    "last axis": ((2,), (Shard(2),)),
    "more ranks than rows": ((12,), (Shard(0),)),
    "replicated": ((2,), (Replicate(),)),
    "hybrid": ((2, 2), (Replicate(), Shard(0))),
    "rows and columns": ((2, 3), (Shard(0), Shard(1))),
    "rows twice": ((2, 2), (Shard(0), Shard(0))),
    "rows in strides": ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "columns in strides": ((2, 3), (_StridedShard(1, split_factor=3), Shard(1))),
    "rows in strides alone": ((2,), (_StridedShard(0, split_factor=3),)),
}
KINDS = ["normal", "truncated_normal", "uniform", "orthogonal", "complex_normal", "constant", "by channel", "groups"]


SHAPE = (9, 10, 7)


def prescribed(kind: str, dtype: torch.dtype) -> Drawn | Constant:
    given = {"name": f"{kind} {dtype}".replace(".", " "), "shape": SHAPE, "reason": "test", "output_axis": 1}
    scales = tuple(0.5 + i for i in range(SHAPE[1]))
    if kind == "constant":
        return Constant(**given, constant=0.3, channel_std=scales)
    if kind == "by channel":
        return Drawn(**given, distribution="normal", std=0.1, channel_std=scales)
    if kind == "groups":
        return Drawn(**given, distribution="orthogonal", std=0.1, groups=SHAPE[0])
    return Drawn(**given, distribution=kind, std=0.1)


def dtypes(kind: str) -> tuple[torch.dtype, ...]:
    return (torch.complex64,) if kind == "complex_normal" else (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("how", PLACEMENTS)
def test_every_rank_holds_its_part_of_the_numbers_of_one_process(how):
    sizes, placements = PLACEMENTS[how]
    said = {prescribed(kind, dtype).name: (prescribed(kind, dtype), dtype) for kind in KINDS for dtype in dtypes(kind)}
    plan = Plan(method="t", seed=5, model="Module", prescriptions={name: p for name, (p, _) in said.items()})
    expected = {name: value.to(said[name][1]) for name, value in draw(plan).items()}
    ranks = torch.Size(sizes).numel()
    for rank in range(ranks):
        with as_rank(rank, ranks):
            mesh, model = mesh_of(*sizes), nn.Module()
            for name, value in expected.items():
                model.register_parameter(name, nn.Parameter(sharded(torch.zeros_like(value), mesh, placements)))
            plan.apply_(model)
            for name, value in expected.items():
                local = model.get_parameter(name).to_local()
                assert torch.equal(local, sharded(value, mesh, placements).to_local()), name


def test_the_parts_of_all_ranks_are_the_whole():
    """In strides a rank holds several ranges of an axis; together the ranks hold each element once."""
    for how in ("rows in strides", "columns in strides", "rows twice"):
        sizes, placements = PLACEMENTS[how]
        held = torch.zeros(9, 10, 7)
        for rank in range(torch.Size(sizes).numel()):
            with as_rank(rank, torch.Size(sizes).numel()):
                parameter = sharded(torch.zeros(held.shape), mesh_of(*sizes), placements)
                for box, part in local_parts(parameter):
                    place = tuple(slice(*side) for side in box)
                    assert held[place].shape == part.shape
                    held[place] += 1
        assert (held == 1).all(), how


def test_sums_over_ranks_are_refused():
    with as_rank(0, 2):
        mesh = mesh_of(2)
        model = nn.Module()
        model.w = nn.Parameter(DTensor.from_local(torch.zeros(3, 3), mesh, [Partial()], run_check=False))
        with pytest.raises(UnsupportedError, match=r"'w' is placed as .*Partial.* not sums over ranks"):
            plan_for(model).apply_(model)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_centred_weights_are_those_of_one_process(axis):
    shape = (9, 10, 7)
    weight = Drawn(name="w", shape=shape, distribution="normal", std=0.1, output_axis=axis, centred=True, reason="test")
    plan = Plan(method="t", seed=5, model="Module", prescriptions={"w": weight})
    whole = draw(plan)["w"]
    for rank, placement in itertools.product(range(3), (Shard(0), Shard(1))):
        with as_rank(rank, 3):
            model = nn.Module()
            model.w = nn.Parameter(sharded(torch.zeros(shape), mesh_of(3), (placement,)))
            plan.apply_(model)
            assert torch.equal(model.w.to_local(), sharded(whole, mesh_of(3), (placement,)).to_local())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_centred_biases_are_those_of_one_process(axis, dtype):
    """Without messages: the weight is drawn again, in the dtype in which it is written, for the outputs held here."""
    shape = (9, 10, 7)
    weight = Drawn(name="w", shape=shape, distribution="normal", std=0.1, output_axis=axis, reason="test")
    bias = Centering(name="b", shape=(shape[axis],), weight="w", value=0.7, reason="test")
    plan = Plan(method="t", seed=5, model="Module", prescriptions={"w": weight, "b": bias})
    whole = nn.Module()
    whole.w, whole.b = nn.Parameter(torch.zeros(shape, dtype=dtype)), nn.Parameter(torch.zeros(bias.shape))
    plan.apply_(whole)
    for rank, placement in itertools.product(range(3), (Shard(0), Shard(1))):
        with as_rank(rank, 3):
            mesh = mesh_of(3)
            model = nn.Module()
            model.w = nn.Parameter(sharded(torch.zeros(shape, dtype=dtype), mesh, (placement,)))
            model.b = nn.Parameter(sharded(torch.zeros(bias.shape), mesh, (Shard(0),)))
            plan.apply_(model)
            assert torch.equal(model.b.to_local(), sharded(whole.b.detach(), mesh, (Shard(0),)).to_local())


@pytest.mark.parametrize(
    ("shape", "box", "blocks"),
    [
        ((64, BLOCK), ((16, 32), (0, BLOCK)), 16),
        ((64, BLOCK), ((0, 64), (5, 1005)), 64),
        ((64, BLOCK), ((3, 5), (BLOCK // 2, BLOCK)), 2),
        ((1024, 2048), ((256, 512), (0, 2048)), 4),
        ((1024, 2048), ((0, 1024), (512, 1024)), 4),
        ((4, 256, 2048), ((2, 3), (0, 256), (1024, 2048)), 2),
        ((1024, 2048), ((255, 257), (511, 513)), 4),
    ],
)
def test_only_what_a_part_needs_is_drawn(monkeypatch, shape, box, blocks):
    drawn: list[int] = []
    fill = Stream.numbers

    def counted(stream, bits, out):
        drawn.append(out.size)
        fill(stream, bits, out)

    monkeypatch.setattr(Stream, "numbers", counted)
    said = Drawn(name="w", shape=shape, distribution="truncated_normal", std=0.1, reason="test")
    out = torch.empty([end - first for first, end in box])
    with workers(1) as crew:
        finish(start_(out, said, 0, crew, box))
    assert len(drawn) == blocks
    assert sum(drawn) == out.numel()  # of a block that is needed in part, only that is worked out


@pytest.mark.parametrize(
    "box", [((0, 3), (1, 4), (0, 5)), ((1, 3), (0, 4), (2, 3)), ((0, 3), (0, 4), (0, 5)), ((2, 2), (0, 4), (0, 5))]
)
def test_runs_are_the_elements_of_a_box_in_order(box):
    array = torch.arange(60).view(3, 4, 5)
    wanted = array[tuple(slice(*side) for side in box)].flatten().tolist()
    found: list[int] = []
    for piece in Runs((3, 4, 5), box).stretches(7):
        assert piece.first == len(found)
        tile = array.flatten()[7 * piece.tile : 7 * piece.tile + 7]
        found += tile[piece.chosen].tolist()
        assert len(found) == piece.first + piece.count
    assert found == wanted


@pytest.fixture
def process_group(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_shards_are_written_also_where_a_pass_has_gathered_them(process_group):
    """FSDP2 keeps the whole parameters of its root after a pass, and resizes their memory later."""
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))
    plan = plan_for(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    model(torch.randn(2, 40))
    plan.apply_(model)
    expected = draw(plan)
    state = model.state_dict()
    assert all(torch.equal(state[name].full_tensor(), expected[name]) for name in expected)
    model(torch.randn(2, 40)).sum().backward()
    model(torch.randn(2, 40))
    groups = plan.param_groups(model, lr=0.1)
    assert all(isinstance(p, DTensor) for group in groups for p in group["params"])


def test_memory_that_was_written_can_still_be_resized():
    model = nn.Linear(100, 100)
    plan_for(model).apply_(model)
    for parameter in model.parameters():
        assert parameter.untyped_storage().resizable()


SHARD_MEMORY = """
import re, torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from wellposed.plans import Drawn, Plan
def megabytes(field):
    return int(re.search(field + r":\\s+(\\d+) kB", open("/proc/self/status").read()).group(1)) / 1024
def taken(size, axis, dtype):
    local = [size, size]
    local[axis] //= 4
    model = nn.Module()
    model.w = nn.Parameter(DTensor.from_local(torch.ones(local, dtype=dtype), mesh, [Shard(axis)], run_check=False))
    said = Drawn(name="w", shape=(size, size), distribution="truncated_normal", std=0.1, reason="test")
    plan = Plan(method="t", seed=0, model="M", prescriptions={"w": said})
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
    before = megabytes("VmRSS")
    plan.apply_(model)
    return megabytes("VmHWM") - before
torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
mesh = init_device_mesh("cpu", (4,))
taken(512, 0, torch.float32)
print(max(taken(8192, axis, dtype) for axis in (0, 1) for dtype in (torch.float32, torch.bfloat16)))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_a_shard_takes_little_memory_beside_its_own():
    """The whole tensor has 268 MB; the shard is there before."""
    done = subprocess.run([sys.executable, "-c", SHARD_MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 64
