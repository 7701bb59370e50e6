"""The quick results on meta are PyTorch's own."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.versions import PINNED

from wellposed.graphs.shapes import _RULES, quick_result

aten = torch.ops.aten


def m(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def needed(op: Any) -> list[float]:
    """Return numbers for the arguments that an operator needs beside its first."""
    return [0.5 for one in op._schema.arguments[1:] if not one.has_default_value()]


def with_rule(name: str) -> list[Any]:
    return [op for op, rule in _RULES.items() if rule.__name__ == name]


UNARY = [op for op in with_rule("_pointwise") if op not in (aten.roll.default, aten.pow.Tensor_Scalar)]
BINARY = [op for op in with_rule("_binary") if op._overloadname == "Tensor"]
IN_PLACE = with_rule("_in_place")
POOLS = {rank: getattr(aten, f"adaptive_avg_pool{rank}d").default for rank in (1, 2, 3)}
PLAIN: list[tuple[Any, tuple[Any, ...]]] = [
    *((op, (m(2, 3, 4), *needed(op))) for op in UNARY),
    *((op, (m(3, dtype=torch.bfloat16), *needed(op))) for op in UNARY),
    *((op, (m(2, 3, 4).transpose(0, 2)[..., :1], *needed(op))) for op in UNARY),
    *((op, (m(2, 3, 4), m(*shape))) for op in BINARY for shape in ((2, 3, 4), (4,), (3, 1), (1, 1, 4))),
    *((op, (m(2, 3, 1, 1), m(2, 3, 4, 4))) for op in BINARY),
    *((op, (m(4, 3).t(), m(4, 3).t())) for op in BINARY),
    *((op, (m(3), m(2, 3))) for op in BINARY),
    *((op, (m(2, 3, 8)[..., :4], m(*shape))) for op in BINARY for shape in ((2, 3, 4), (4,), (3, 1), (2, 3, 1))),
    *((op, (m(2, 6, 4)[:, ::2, 1:3], m(2, 3, 8)[..., :2])) for op in BINARY),
    *((op, (m(2, 3), 2.5)) for op in BINARY),
    (aten.roll.default, (m(2, 4, 4, 3), [1, 1], [1, 2])),
    (aten.gelu.default, (m(2, 3, 4),)),
    (aten.pow.Tensor_Scalar, (m(2, 3, 4), 2)),
    (aten.pow.Tensor_Scalar, (m(2, 3, 4, dtype=torch.bfloat16), 0.5)),
    *((op, (m(2, 3, 4), *needed(op))) for op in IN_PLACE),
    *((op, (m(2, 3, 4).transpose(0, 2), *needed(op))) for op in IN_PLACE),
    *((op, (m(2, 3, 4), m(3, 1))) for op in IN_PLACE if op._overloadname == "Tensor"),
    (aten.dropout.default, (m(2, 3, 4), 0.1, True)),
    *((op, (m(2, 3, 4).transpose(0, 1), 0.5)) for op in with_rule("_compared")),
    (aten.rsub.Scalar, (m(2, 3, 4).transpose(0, 1), 1, 2)),
    (aten.maximum.default, (m(2, 3, 4), m(3, 1))),
    (aten.minimum.default, (m(4), m(2, 3, 4).transpose(0, 1))),
    (aten.where.self, (m(3, 1, dtype=torch.bool), m(2, 3, 4), torch.empty((), device="meta"))),
    (aten.clamp.default, (m(2, 3, 4), 0.0)),
    (aten.clamp.default, (m(2, 3, 4), None, 1)),
    (aten.masked_fill.Scalar, (m(2, 3, 4), m(3, 4, dtype=torch.bool), -math.inf)),
    *((aten.stack.default, ([m(2, 3), m(3, 2).t()], dim)) for dim in (0, -1, 2)),
    (aten.group_norm.default, (m(2, 6, 4, 4), 3, m(6), m(6), 1e-5, True)),
    (aten.log_softmax.int, (m(2, 3, 4), -1)),
    (aten.prelu.default, (m(2, 3, 4), m(3))),
    (aten.prelu.default, (m(3, 2).t(), m(1))),
    (aten.addmm.default, (m(5), m(3, 4), m(4, 5))),
    (aten.addmm.default, (m(3, 5), m(4, 3).t(), m(5, 4).t())),
    *((op, (m(2, 3, *range(5, 5 + rank)), [size] * rank)) for rank, op in POOLS.items() for size in (1, 2)),
    (aten.mean.dim, (m(2, 3, 4), [-1], True)),
    (aten.mean.dim, (m(2, 3, 4), [0, -1])),
    (aten.cat.default, ([m(2, 3), m(2, 3)],)),
    (aten.cat.default, ([m(2, 3), m(0)],)),
    (aten.cat.default, ([m(1, 2, 5, 8)[..., 4:], m(1, 2, 5, 8)[..., :4]], -1)),
    (aten.cat.default, ([m(1, 5, 2, 8).transpose(1, 2)[..., 4:], m(1, 2, 5, 3)], 3)),
    (aten.softmax.int, (m(2, 3, 4), -1)),
    (aten.linear.default, (m(2, 3), m(5, 3), m(5))),
    (aten.linear.default, (m(2, 7, 4, 3), m(5, 3))),
    (aten.linear.default, (m(2, 3, 7).transpose(1, 2), m(5, 3), m(5))),
    (aten.matmul.default, (m(3, 4), m(4, 5))),
    (aten.matmul.default, (m(2, 6, 3, 4), m(2, 6, 5, 4).transpose(2, 3))),
    (aten.bmm.default, (m(6, 3, 4), m(6, 4, 5))),
    (aten.layer_norm.default, (m(2, 3, 4), [4], m(4), m(4), 1e-5)),
    (aten.layer_norm.default, (m(2, 3, 4), [3, 4])),
    (aten.batch_norm.default, (m(2, 3, 4, 4), m(3), m(3), m(3), m(3), True, 0.1, 1e-5, False)),
    (aten.batch_norm.default, (m(2, 3), None, None, m(3), m(3), False, 0.1, 1e-5, False)),
    (aten.conv1d.default, (m(2, 3, 9), m(4, 3, 3))),
    (aten.conv1d.default, (m(2, 1, 1), m(4, 1, 1), m(4), [1], [0], [1])),
    (aten.conv2d.default, (m(2, 4, 9, 8), m(6, 2, 3, 2), m(6), [2, 1], [1, 0], [1, 2], 2)),
    (aten.conv2d.default, (m(2, 4, 1, 1), m(6, 4, 1, 1), None, [1, 1], [0, 0], [1, 1], 1)),
    (aten.conv2d.default, (m(1, 1, 5, 5), m(3, 1, 5, 5, dtype=torch.float32), None, [2], [3])),
    (
        aten.conv2d.default,
        (m(2, 4, 7, 7, dtype=torch.bfloat16), m(4, 1, 3, 3, dtype=torch.bfloat16), None, [1, 1], [1, 1], [1, 1], 4),
    ),
    (aten.conv3d.default, (m(2, 3, 5, 6, 7), m(4, 3, 3, 3, 3), m(4), [1, 2, 2], [1, 1, 1])),
    (aten.scaled_dot_product_attention.default, (m(2, 4, 5, 8), m(2, 4, 7, 8), m(2, 4, 7, 8))),
    (aten.scaled_dot_product_attention.default, (m(2, 4, 5, 8), m(2, 4, 7, 8), m(2, 4, 7, 3))),
    (aten.scaled_dot_product_attention.default, (m(2, 5, 4, 8).transpose(1, 2), m(2, 4, 7, 8), m(2, 4, 7, 3))),
]


@pytest.mark.parametrize(("op", "args"), PLAIN, ids=[f"{i}-{op}" for i, (op, _) in enumerate(PLAIN)])
def test_quick_results_are_those_of_pytorch(op: Any, args: tuple[Any, ...]) -> None:
    with torch.inference_mode():
        quick = quick_result(op, list(args), {})
        expected = op(*args)
    assert quick is not None
    assert quick.shape == expected.shape
    assert quick.dtype == expected.dtype
    assert quick.stride() == expected.stride()


def test_every_rule_has_a_plain_case() -> None:
    assert {op for op, _ in PLAIN} == set(_RULES)


@pytest.mark.parametrize(
    ("x", "weight", "rest"),
    [
        (m(2, 3, 9, 9).to(memory_format=torch.channels_last), m(4, 3, 3, 3), ()),
        (m(2, 3, 9, 9), m(4, 3, 3, 3).to(memory_format=torch.channels_last), ()),
        (m(3, 9, 9), m(4, 3, 3, 3), ()),
        (m(2, 3, 9, 9), m(4, 2, 3, 3), ()),
        (m(2, 3, 9, 9), m(4, 3, 3, 3), (m(3),)),
        (m(2, 3, 9, 9), m(4, 3, 3, 3, dtype=torch.float64), ()),
        (m(2, 3, 9, 9), m(4, 3, 3, 3), (None, [1, 1], [-1, 0])),
        (m(2, 3, 9, 9), m(4, 3, 3, 3), (None, [0, 1])),
        (m(2, 3, 2, 2), m(4, 3, 3, 3), ()),
        (m(0, 3, 9, 9), m(4, 3, 3, 3), ()),
        (m(2, 3, 9, 9), m(4, 1, 3, 3), (None, [1, 1], [0, 0], [1, 1], 3)),
    ],
)
def test_other_convolutions_are_left_to_pytorch(x: torch.Tensor, weight: torch.Tensor, rest: tuple[Any, ...]) -> None:
    assert quick_result(aten.conv2d.default, [x, weight, *rest], {}) is None


def laid_out(shape: Sequence[int], some: random.Random) -> torch.Tensor:
    """Return a tensor whose axes lie in some order, with gaps between some, or repeated along one."""
    order = some.sample(range(len(shape)), len(shape))
    whole = torch.zeros([shape[axis] + some.choice([0, 0, 2]) for axis in order])
    for place, axis in enumerate(order):
        whole = whole.narrow(place, 0, shape[axis])
    made = whole.permute([order.index(axis) for axis in range(len(shape))])
    if some.random() < 0.1:
        made = made.narrow(axis := some.randrange(len(shape)), 0, 1).expand(tuple(shape))
    return made


@pytest.mark.parametrize("op", [aten.elu.default, aten.mul.Tensor, aten.where.self])
def test_results_lie_as_the_kernels_on_cpu_leave_them(op: Any) -> None:
    some = random.Random(0)
    for _ in range(1000):
        shape = [some.randint(1, 4) for _ in range(some.randint(1, 4))]
        args = [laid_out(shape, some)]
        for _ in range(1, sum("Tensor" in str(one.type) for one in op._schema.arguments)):
            other = [size if some.random() < 0.75 else 1 for size in shape[some.choice([0, 0, 1]) :]]
            args.insert(some.randint(0, 1), laid_out(other or [1], some))
        args[0] = args[0] > 0 if op is aten.where.self else args[0]
        real = op(*args)
        on_meta = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in args]
        quick = quick_result(op, on_meta, {})
        assert quick is not None
        assert quick.stride() == real.stride(), [(t.shape, t.stride()) for t in args]


@pytest.mark.slow
def test_usual_nets_are_traced_without_the_compiler() -> None:
    code = """
import sys, torch, wellposed
from torch import nn
names = "ELU", "SELU", "CELU", "Mish", "LeakyReLU", "Hardtanh", "Softplus", "ReLU6", "Softshrink", "Threshold"
acts = [getattr(nn, name)(*([0.1, 0.2] if name == "Threshold" else [])) for name in names]
acts += [nn.PReLU(8), nn.Dropout(0.1)]
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *acts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
wellposed.trace(net, torch.zeros(2, 3, 8, 8))
sys.exit("torch._dynamo" in sys.modules)  # its import takes seconds
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("transposed", ["", "query, keys, values", "features of the query", "features of the keys"])
@pytest.mark.parametrize("mask", [None, (5, 7), (2, 1, 5, 7)])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_lies_as_the_kernel_on_cpu_leaves_it(groups: int, transposed: str, mask: Any, dropout: float) -> None:
    shapes = ((2, 4, 5, 8), (2, groups, 7, 8), (2, groups, 7, 8))
    tensors = [torch.randn(*shape) for shape in shapes]
    if transposed == "query, keys, values":
        tensors = [torch.randn(b, n, h, w).transpose(1, 2) for b, h, n, w in shapes]
    elif transposed:
        place = ("features of the query", "features of the keys").index(transposed)
        tensors[place] = tensors[place].mT.contiguous().mT
    rest: list[Any] = [None if mask is None else torch.ones(mask, dtype=torch.bool), dropout]
    options = {"enable_gqa": groups != 4}
    real = aten.scaled_dot_product_attention.default(*tensors, *rest, **options)
    args = [t.to("meta") if isinstance(t, torch.Tensor) else t for t in (*tensors, *rest)]
    quick = quick_result(aten.scaled_dot_product_attention.default, args, options)
    if quick is None:
        assert not PINNED
        assert groups == 2
        return
    assert quick.shape == real.shape
    assert quick.stride() == real.stride()


@pytest.mark.parametrize("x", [torch.randn(2, 3, 4).transpose(0, 2), torch.randn(2, 3, 4).transpose(1, 2)])
def test_layer_norm_lies_as_the_kernel_on_cpu_leaves_it(x: torch.Tensor) -> None:
    args = (list(x.shape[-1:]), None, None, 1e-5)
    quick = quick_result(aten.layer_norm.default, [x.to("meta"), *args], {})
    assert quick is not None
    assert quick.stride() == aten.layer_norm.default(x, *args).stride()


WRONG: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.linear.default, (m(2, 3), m(5, 4))),
    (aten.linear.default, (m(2, 3), m(5, 3), m(4))),
    (aten.linear.default, (m(2, 3), m(5, 3, dtype=torch.float64))),
    (aten.matmul.default, (m(3, 4), m(5, 5))),
    (aten.layer_norm.default, (m(2, 3), [4])),
    (aten.layer_norm.default, (m(2, 3), [3], m(4))),
    (aten.batch_norm.default, (m(2, 3, 4), m(4), m(4), None, None, True, 0.1, 1e-5, False)),
    (aten.add.Tensor, (m(2, 3), m(2))),
    (aten.softmax.int, (m(2, 3), 2)),
    (aten.scaled_dot_product_attention.default, (m(2, 4, 5, 8), m(2, 4, 7, 9), m(2, 4, 7, 9))),
    # Right, but not plain: other dtypes and layouts come out.
    (aten.add.Tensor, (m(2, 3), m(2, 3, dtype=torch.float64))),
    (aten.add_.Tensor, (m(2, 3), m(2, 2, 3))),
    (aten.mul_.Tensor, (m(2, 3), m(2, 3, dtype=torch.float64))),
    (aten.clamp_min.Tensor, (m(2, 3), m(2, 3))),
    (aten.dropout.default, (m(2, 3), 0.0, True)),
    (aten.dropout.default, (m(2, 3), 0.5, False)),
    (aten.dropout.default, (m(2, 3), 1.5, True)),
    (aten.where.self, (m(2, 3, dtype=torch.bool), m(2, 3), m(3, dtype=torch.float64))),
    (aten.where.self, (m(2, 2, dtype=torch.bool), m(2, 3), m(3))),
    (aten.clamp.default, (m(2, 3),)),
    (aten.masked_fill.Scalar, (m(2, 3), m(2, 2, 3, dtype=torch.bool), 0)),
    (aten.masked_fill.Scalar, (m(2, 3), m(2, 3), 0)),
    (aten.stack.default, ([m(2, 3), m(2, 4)],)),
    (aten.stack.default, ([m(2, 3), m(2, 3)], 3)),
    (aten.group_norm.default, (m(2, 6, 4, 4), 4, None, None, 1e-5, True)),
    (aten.group_norm.default, (m(2, 6, 4, 4), 3, m(3), None, 1e-5, True)),
    (aten.gt.Scalar, (m(2, 3, dtype=torch.int64), 1)),
    (aten.prelu.default, (m(2, 3, 4), m(4))),
    (aten.prelu.default, (m(2, 3, 4), m(3, dtype=torch.float64))),
    (aten.addmm.default, (m(4), m(3, 4), m(4, 5))),
    (aten.addmm.default, (m(5), m(3, 4), m(5, 5))),
    (aten.adaptive_avg_pool2d.default, (m(2, 5, 5, 3).permute(0, 3, 1, 2), [1, 1])),
    (aten.softmax.int, (m(2, 3), 1, torch.float64)),
    (aten.pow.Tensor_Scalar, (m(2, 3), 1j)),
    (aten.relu_.default, (m(1, 3).expand(2, 3),)),
    (aten.mean.dim, (m(2, 3), [2])),
    (aten.mean.dim, (m(2, 3), [0, 0])),
    (aten.mean.dim, (m(3, 2).t(), [1])),
    (aten.cat.default, ([m(2, 3), m(3, 3)], 1)),
    (aten.cat.default, ([m(2, 3), m(2, 3, dtype=torch.float64)],)),
    (aten.cat.default, ([m(2, 3), m(0, dtype=torch.float64)],)),
    (aten.cat.default, ([m(2, 5, 5, 3).permute(0, 3, 1, 2)] * 2, 1)),
]


@pytest.mark.parametrize(("op", "args"), WRONG, ids=[f"{i}-{op}" for i, (op, _) in enumerate(WRONG)])
def test_everything_else_is_left_to_pytorch(op: Any, args: tuple[Any, ...]) -> None:
    assert quick_result(op, list(args), {}) is None
