"""The record of every operator against its numbers: what is declared holds, and what holds is declared."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.signals.driver import last_node, traced
from tests.signals.specs import SPECS

from wellposed.graphs import Ref
from wellposed.graphs.operators import traits
from wellposed.graphs.run import call, dense, run
from wellposed.operators.facts import ANY, FACTS, Facts, facts_of
from wellposed.operators.product import is_product
from wellposed.operators.schema import plain_name
from wellposed.operators.views import is_view

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
Tensors = list[torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def _double_precision():
    """Numbers that are no tensors become tensors of this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# ---- calls of operators with real arguments -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """An operator with arguments by name, in the schema's order."""

    label: str
    op: torch._ops.OpOverload
    named: Mapping[str, Any]

    def given(self, /, **changes: Any) -> Sample:
        return replace(self, named={**self.named, **changes})

    def group(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of some arguments in this overload."""
        found = (self.first if name == "self" and name not in self.named else name for name in names)
        return tuple(name for name in found if name in self.named)

    def mapped(self, function: Callable[[Any], Any], names: tuple[str, ...] | None = None) -> Sample:
        """The same with a function of the numbers among some arguments, of all tensors of numbers for none."""
        chosen = self.named if names is None else self.group(names)
        return self.given(**{name: _mapped(function, self.named[name], names is not None) for name in chosen})

    def results(self, seed: int = 0) -> Tensors:
        """The results of numbers; those of truth values where there are none."""
        torch.manual_seed(seed)
        positional = [a.name for a in self.op._schema.arguments if not a.kwarg_only and a.name in self.named]
        args = [self.named[name] for name in positional]
        made = [dense(t) for t in call(self.op, args, {k: v for k, v in self.named.items() if k not in positional})]
        return [t for t in made if _is_number(t)] or made

    def numbers(self, names: tuple[str, ...]) -> Tensors:
        """The tensors of numbers among some arguments."""
        return [t for name in self.group(names) for t in _flat(self.named[name]) if _is_number(t)]

    def is_whole(self, names: tuple[str, ...]) -> bool:
        """Whether some arguments hold whole numbers, or nothing but these and truth values."""
        values = [value for name in self.group(names) for value in _flat(self.named[name])]
        whole = any(isinstance(value, torch.Tensor) and not _is_number(value) for value in values)
        return whole or not any(_is_number(value) or _is_plain(value) for value in values)

    @property
    def first(self) -> str:
        return next(iter(self.named))

    @property
    def x(self) -> Any:
        return self.named[self.first]

    @property
    def tensors(self) -> Tensors:
        return self.numbers(tuple(self.named))


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _flat(value: Any) -> list[Any]:
    return [each for item in value for each in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def _mapped(function: Callable[[Any], Any], value: Any, plain: bool) -> Any:
    """Lists and numbers with a function of the latter; of plain numbers as well as of tensors where that is wanted."""
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return [_mapped(function, item, plain) for item in value]
    return function(value) if _is_number(value) or (plain and _is_plain(value)) else value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _resolved(argument: Any, env: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(argument, Ref):
        found = env[argument.value]
        return found.double() if found.dtype == torch.float32 else found
    if isinstance(argument, (list, tuple)):
        return [_resolved(item, env) for item in argument]
    return None if isinstance(argument, torch.Generator) else argument


@cache
def samples(op: torch._ops.OpOverload) -> tuple[Sample, ...]:
    """What the operator is called with in its specifications, at random inputs and weights."""
    return (*_specified(op), *FURTHER.get(op, ()))


def _specified(op: torch._ops.OpOverload) -> Iterator[Sample]:
    for case in SPECS.get(op, ()):
        _, graph = traced(case)
        generator = torch.Generator().manual_seed(zlib.crc32(case.label.encode()))
        inputs = {v: s.draw(1, generator)[0] for v, s in zip(graph.inputs, case.sources, strict=True)}
        parameters = {
            name: weight.mean + weight.std * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            for name, weight in case.weights.items()
        }
        env = {**graph.known, **inputs, **{graph.parameters[name].value: value for name, value in parameters.items()}}
        env |= {graph.buffers[name]: tensor for name, tensor in graph.buffer_tensors.items()}
        node = last_node(case, graph, op)

        def note(at: Any, results: tuple[torch.Tensor, ...], env: dict[int, torch.Tensor] = env) -> None:
            env.update(zip(at.outputs, results, strict=True))

        run(graph, parameters=parameters, inputs=inputs, observe=note, seed=0)
        schema = [a.name for a in op._schema.arguments]
        named = {schema[place]: _resolved(argument, env) for place, argument in enumerate(node.args)}
        named |= {name: _resolved(argument, env) for name, argument in node.kwargs.items()}
        yield Sample(case.label, op, named)


def _sample(op: torch._ops.OpOverload, *args: Any) -> Sample:
    return Sample(str(op), op, dict(zip((a.name for a in op._schema.arguments), args, strict=False)))


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


SQUARE, ROW = _randn(4, 4), _randn(4)
FURTHER: Mapping[torch._ops.OpOverload, tuple[Sample, ...]] = {
    sample.op: (sample,)
    for sample in (
        _sample(aten.addcdiv.default, SQUARE, _randn(4, 4) + 1.0, _randn(4, 4).abs() + 1.0),
        _sample(aten.addbmm.default, SQUARE, _randn(2, 4, 3), _randn(2, 3, 4)),
        _sample(aten.fmax.default, SQUARE, _randn(4, 4).t() - 0.1),
        _sample(aten.fmin.default, SQUARE, _randn(4, 4).t() - 0.1),
        _sample(aten.hypot.default, SQUARE, _randn(4, 4).t() - 0.1),
        _sample(aten.logaddexp.default, SQUARE, _randn(4, 4).t() - 0.1),
        _sample(aten.xlogy.Tensor, SQUARE, _randn(4, 4).exp()),
        _sample(aten.logical_xor.default, SQUARE > 0.0, SQUARE > 0.5),
        _sample(aten.bitwise_xor.Tensor, SQUARE > 0.0, SQUARE > 0.5),
        _sample(aten.isnan.default, SQUARE.log()),
        _sample(aten.fill_diagonal_.default, SQUARE, 0.5),
        _sample(aten.hstack.default, [SQUARE, _randn(4, 2)]),
        _sample(aten.vstack.default, [SQUARE, _randn(2, 4)]),
        _sample(aten.kron.default, SQUARE, _randn(2, 3)),
        _sample(aten.take.default, SQUARE, torch.tensor([3, 7, 7])),
        _sample(aten.norm.Scalar, SQUARE),
        _sample(aten.linalg_norm.default, SQUARE),
        _sample(aten.aminmax.default, SQUARE),
        _sample(aten.mode.default, SQUARE.round()),
        _sample(aten.kthvalue.default, SQUARE, 2),
        _sample(aten.argmax.default, SQUARE),
        _sample(aten.argmin.default, SQUARE),
        _sample(aten.argsort.default, SQUARE),
        _sample(aten.as_strided.default, SQUARE, [2, 3], [1, 4]),
        _sample(aten.detach.default, SQUARE),
        _sample(aten.alias.default, SQUARE),
        _sample(aten.lift_fresh.default, SQUARE),
        _sample(aten._adaptive_avg_pool2d.default, _randn(1, 2, 4, 4), [2, 2]),
        _sample(aten._adaptive_avg_pool3d.default, _randn(1, 2, 4, 4, 4), [2, 2, 2]),
        _sample(aten._log_softmax.default, SQUARE, 1, False),
        _sample(aten._fft_r2c.default, SQUARE, [1], 0, True),
        _sample(aten._fft_c2r.default, torch.complex(SQUARE, SQUARE.t()), [1], 0, 6),
        _sample(aten._fft_c2c.default, torch.complex(SQUARE, SQUARE.t()), [1], 0, True),
        _sample(aten.lstm_cell.default, _randn(2, 3), [_randn(2, 4), _randn(2, 4)], _randn(16, 3), _randn(16, 4)),
        _sample(aten.gru_cell.default, _randn(2, 3), _randn(2, 4), _randn(12, 3), _randn(12, 4)),
        _sample(aten.rnn_tanh_cell.default, _randn(2, 3), _randn(2, 4), _randn(4, 3), _randn(4, 4)),
        _sample(aten.rnn_relu_cell.default, _randn(2, 3), _randn(2, 4), _randn(4, 3), _randn(4, 4)),
        _sample(aten.abs.default, torch.complex(SQUARE, SQUARE.t())),
    )
}
"""Operators that have facts, and no rule that a specification would test."""
NAMED: dict[str, list[torch._ops.OpOverload]] = {}
for overload in sorted({*SPECS, *FURTHER}, key=str):
    NAMED.setdefault(plain_name(overload), []).append(overload)


# ---- what numbers say -----------------------------------------------------------------------------------------------

ROUNDING = 1e-9
"""Share of the largest number that counts as rounding, in double precision."""
GRID = torch.linspace(-8.0, 8.0, 1601, dtype=torch.float64)


def same(left: Tensors, right: Tensors) -> bool:
    """Whether results are the same but for rounding."""
    if [t.shape for t in left] != [t.shape for t in right]:
        return False
    sizes = [t.abs().nan_to_num(0.0, 0.0, 0.0).max() for t in (*left, *right) if t.numel() and _is_number(t)]
    within = ROUNDING * max(map(float, sizes), default=0.0)
    return all(
        torch.allclose(a, b, rtol=0.0, atol=within, equal_nan=True) if _is_number(a) else torch.equal(a, b)
        for a, b in zip(left, right, strict=True)
    )


def among(elements: Tensors, those: Tensors, *others: float) -> bool:
    """Whether all elements are some of others' elements, or certain numbers."""
    known = torch.cat([torch.tensor(others, dtype=torch.float64), *(t.double().flatten() for t in those)])
    return all(bool(torch.isin(t.double(), known).all()) for t in elements)


def fresh(value: Any) -> Any:
    """Other random numbers of the same kind."""
    generator = torch.Generator().manual_seed(1)
    if isinstance(value, torch.Tensor):
        return torch.randn(value.shape, generator=generator, dtype=value.dtype)
    return 0.8


def is_linear(sample: Sample, names: tuple[str, ...]) -> bool | None:
    """Whether f(a x + b y) = a f(x) + b f(y) in some arguments together; None where they are no numbers."""
    if sample.is_whole(names):
        return None
    a, b = 0.7, -1.3
    other = sample.mapped(fresh, names)
    mixed = sample.given(**{
        name: _paired(sample.named[name], other.named[name], lambda x, y: a * x + b * y) for name in sample.group(names)
    })  # fmt: skip
    expected = [a * x + b * y for x, y in zip(sample.results(), other.results(), strict=True)]
    return same(mixed.results(), expected)


def _paired(left: Any, right: Any, function: Callable[[Any, Any], Any]) -> Any:
    if isinstance(left, (list, tuple)):
        return [_paired(x, y, function) for x, y in zip(left, right, strict=True)]
    return function(left, right) if _is_number(left) or _is_plain(left) else left


def follows(sample: Sample, names: tuple[str, ...], degree: float) -> bool | None:
    """Whether f(c x) = c^degree f(x) in some arguments together, for c > 0."""
    if sample.is_whole(names):
        return None
    scaled = sample.mapped(lambda x: 1.7 * x, names)
    return same(scaled.results(), [t * 1.7**degree for t in sample.results()])


def depends_on_places(sample: Sample) -> bool | None:
    """Whether an element of the result depends on those in its place alone, and alike in all places."""
    sample = sample.given(training=False) if "training" in sample.named else sample
    before, tensors = sample.results(), [t for t in sample.tensors if t.numel() > 1]
    count = before[0].numel()
    if any(t.numel() > count for t in tensors):
        return False
    if count < 2 or len({t.shape for t in (*before, *tensors)}) != 1:
        return None
    some = (torch.arange(count) % 3 == 0).view(before[0].shape)
    elsewhere = sample.mapped(lambda x: torch.where(some, x, _inside(sample.op, fresh(x))) if x.numel() > 1 else x)
    local = all(torch.equal(x[some], y[some]) for x, y in zip(before, elsewhere.results(), strict=True))
    if not local or traits(sample.op).random:
        return local
    if any(isinstance(v, torch.Tensor) and 1 < v.numel() < count for v in sample.named.values()):
        return None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(2))
    shuffled = sample.given(**{
        name: _moved(value, order) for name, value in sample.named.items() if isinstance(value, torch.Tensor)
    })  # fmt: skip
    return same(shuffled.results(), [_moved(t, order) for t in before])


def _moved(value: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return value.flatten()[order].view(value.shape) if value.numel() == len(order) else value


def _inside(op: torch._ops.OpOverload, value: torch.Tensor) -> torch.Tensor:
    """Numbers inside of a function's domain."""
    low, high = facts_of(op).domain
    if math.isinf(low):
        return value
    return low + 0.1 + value.abs() if math.isinf(high) else low + (high - low) * torch.sigmoid(value)


def curve(sample: Sample) -> torch.Tensor | None:
    """A function of one number along the grid; None for other operators."""
    if not facts_of(sample.op).function or not _is_number(sample.x) or sample.x.is_complex():
        return None
    return sample.given(**{sample.first: GRID}).results()[0]


def axes_of(sample: Sample) -> list[int]:
    """The axes along which an operator works, as its argument ``dim`` says; all of them for none."""
    defaults = {a.name: a.default_value for a in sample.op._schema.arguments}
    dim = sample.named.get("dim", defaults.get("dim"))
    dims = dim if isinstance(dim, (list, tuple)) else [] if dim is None else [dim]
    return [int(d) % sample.x.ndim for d in dims] or list(range(sample.x.ndim))


def reversed_along(sample: Sample) -> Sample:
    return sample.given(**{sample.first: sample.x.flip(axes_of(sample)[:1])})


# ---- one check for each fact ----------------------------------------------------------------------------------------


def _linear(sample: Sample, facts: Facts) -> bool | None:
    told = [is_linear(sample, group) for group in facts.linear]
    return None if all(one is None for one in told) else all(one is not False for one in told)


def _affine(sample: Sample, facts: Facts) -> bool | None:
    other = sample.given(**{sample.first: fresh(sample.x)})
    middle = sample.given(**{sample.first: (sample.x + other.x) / 2})
    return same(middle.results(), [(x + y) / 2 for x, y in zip(sample.results(), other.results(), strict=True)])


def _coefficients(sample: Sample, facts: Facts) -> bool | None:
    if sample.x.is_complex():
        return None
    ones = sample.given(**{sample.first: torch.ones_like(sample.x)}).results()
    means = facts.coefficients != "mean" or same(ones, [torch.ones_like(t) for t in ones])
    return means and never_negative(sample)


def never_negative(sample: Sample) -> bool | None:
    """Whether what is never negative leads to nothing negative; None of complex numbers."""
    made = [
        t
        for shift in (0.0, 0.5, 1.0, 2.0)
        for t in sample.given(**{sample.first: fresh(sample.x).sub(shift).relu()}).results()
    ]
    return None if any(t.is_complex() for t in made) else not any(bool((t < 0.0).any()) for t in made)


def _degree(sample: Sample, facts: Facts) -> bool | None:
    return follows(sample, facts.scaled, facts.degree or 0.0)


def _function(sample: Sample, facts: Facts) -> bool | None:
    return depends_on_places(sample) if len(sample.tensors) == 1 else False


def _monotone(sample: Sample, facts: Facts) -> bool | None:
    high = facts.domain.high
    above = sample.mapped(lambda x: x + (fresh(x).abs() if math.isinf(high) else (high - x) / 2))
    steps = [facts.monotone * (y - x) for x, y in zip(sample.results(), above.results(), strict=True)]
    return all(bool((step >= 0.0).all()) for step in steps)


def _range(sample: Sample, facts: Facts) -> bool | None:
    made = [t for t in (*sample.results(), curve(sample)) if t is not None and not t.is_complex()]
    return all(bool(((t >= facts.range.low) & (t <= facts.range.high)).all()) for t in made)


def _periodic(sample: Sample, facts: Facts) -> bool | None:
    if not isinstance(sample.x, torch.Tensor) or sample.x.is_complex():
        return None
    turned = sample.mapped(lambda x: x + 2.0 * torch.pi)
    pairs = list(zip(sample.results(), turned.results(), strict=True))
    return all(one.allclose(other, atol=1e-5) for one, other in pairs) and not all(
        bool((one == one.flatten()[0]).all()) for one, _ in pairs
    )


def _domain(sample: Sample, facts: Facts) -> bool | None:
    if not isinstance(sample.x, torch.Tensor) or isinstance(sample.named.get("exponent"), torch.Tensor):
        return None
    ends = [(end, side) for end, side in zip(facts.domain, (-1.0, 1.0), strict=True) if math.isfinite(end)]
    outside = [torch.tensor([end + by * side for by in (0.0, 0.3)], dtype=torch.float64) for end, side in ends]
    inside = torch.tensor([end - 0.4 * side for end, side in ends], dtype=torch.float64)
    made = [sample.given(**{sample.first: x}).results()[0] for x in outside]
    if all(bool(t.isfinite().all()) for t in made):
        return None  # kept inside by a further argument
    poles = all(not bool(t.isfinite().all()) for t in made)
    return poles and bool(sample.given(**{sample.first: inside}).results()[0].isfinite().all())


def _rounds(sample: Sample, facts: Facts) -> bool | None:
    (made,) = sample.results()
    return bool((made == made.round()).all()) and bool(((made - sample.x).abs() < 1.0).all())


def _terms(sample: Sample, facts: Facts) -> bool | None:
    operands = [sample.named[name] for name in sample.group(facts.scaled)]
    signs = facts.terms
    by_alpha = 0 if signs[0] < 0.0 else 1
    alpha = sample.named.get("alpha", 1)
    total = sum(s * (alpha if i == by_alpha else 1) * x for i, (s, x) in enumerate(zip(signs, operands, strict=True)))
    return same(sample.results(), [total])


def _powers(sample: Sample, facts: Facts) -> bool | None:
    left, right = sample.named["self"], sample.named["other"]
    return same(sample.results(), [left * right if facts.powers == (1.0, 1.0) else left / right])


def _raises(sample: Sample, facts: Facts) -> bool | None:
    return same(sample.results(), [torch.as_tensor(sample.named["self"]) ** sample.named["exponent"]])


def _merges(sample: Sample, facts: Facts) -> bool | None:
    if facts.merges == "sum":
        return is_linear(sample, facts.scaled)
    if facts.segments:
        return _segments(sample, facts)
    if facts.adds or sample.named.get("accumulate"):
        return is_linear(sample, facts.scaled)
    numbers = [v for n in sample.group(facts.scaled) for v in _flat(sample.named[n]) if isinstance(v, (int, float))]
    made = sample.results()
    joined = sum(t.numel() for t in sample.numbers(facts.scaled)) == sum(t.numel() for t in made)
    longer = {made[0].ndim - t.ndim for t in sample.numbers(facts.scaled)} == {1}
    if facts.joins and not (joined and longer == (facts.merges == "stack")):
        return False
    return made[0].is_complex() or among(made, sample.numbers(facts.scaled), *numbers)


def _adds(sample: Sample, facts: Facts) -> bool | None:
    without = sample.given(**{sample.first: torch.zeros_like(sample.x)}).results()
    return bool(without[0].any()) and is_added_to(sample)


def is_added_to(sample: Sample) -> bool:
    """Whether a result is a multiple of the first tensor, where all others are 0."""
    others = tuple(name for name in sample.named if name != sample.first)
    zeros = sample.mapped(lambda x: 0.0 * x if isinstance(x, torch.Tensor) else x, others)
    alone = zeros.results()[0]
    reach = zip(reversed(sample.x.shape), reversed(alone.shape), strict=False)
    if not bool(alone.any()) or alone.ndim < sample.x.ndim or any(n not in (1, m) for n, m in reach):
        return False
    x = sample.x.expand(alone.shape)
    return same([alone * float((x * x).sum())], [x * float((x * alone).sum())])


def _segments(sample: Sample, facts: Facts) -> bool | None:
    own = torch.scatter_reduce(*(sample.named[name] for name in ("self", "dim", "index", "src", "reduce")),
                               include_self=sample.named.get("include_self", True))  # fmt: skip
    return same(sample.results(), [own])


def _picks(sample: Sample, facts: Facts) -> bool | None:
    if not sample.tensors or any(t.is_complex() for t in sample.tensors):
        return None
    return among(sample.results(), sample.tensors)


def _pads(sample: Sample, facts: Facts) -> bool | None:
    return among(sample.results(), [sample.x], float(sample.named.get("value") or 0.0))


def _along(sample: Sample, facts: Facts) -> bool | None:
    made, x, (axis, *_) = sample.results()[0], sample.x, axes_of(sample)
    shifted = sample.given(**{sample.first: x + 0.5}).results()[0]
    if facts.along == "sum":
        return is_linear(sample, (sample.first,))
    if facts.along == "square":
        return same([made], sample.given(**{sample.first: -x}).results()[:1])
    if facts.along == "order":
        return keeps_order(sample)
    if facts.along == "product":
        other = sample.given(**{sample.first: fresh(x)})
        return same(other.given(**{sample.first: x * other.x}).results(), [made * other.results()[0]])
    if facts.along == "logarithm":
        return same([shifted], [made + 0.5 if facts.extent else made])
    return same([shifted, made.sum(axis)], [made, torch.ones_like(made.sum(axis))])


def keeps_order(sample: Sample) -> bool:
    """Whether an operator commutes with a function that rises: it looks at the order of elements alone."""

    def risen(t: torch.Tensor) -> torch.Tensor:
        return t**3 + t if _is_number(t) else t

    return same(sample.given(**{sample.first: risen(sample.x)}).results(), list(map(risen, sample.results())))


def _extent(sample: Sample, facts: Facts) -> bool | None:
    before, after = sample.results(), reversed_along(sample).results()
    axis = axes_of(sample)[0]
    if facts.extent == "axis":
        return (same(before, after) or not _is_number(before[0])) and before[0].numel() < sample.x.numel()
    return same([t.select(axis, -1) for t in before], [t.select(axis, -1) for t in after])


def _above(sample: Sample, facts: Facts) -> bool | None:
    left, right = sample.named["self"], sample.named["other"]
    return same(sample.results(), [left > right]) or same(sample.results(), [left >= right])


def _modulus(sample: Sample, facts: Facts) -> bool | None:
    return same(sample.results(), [(sample.x.real**2 + sample.x.imag**2).sqrt()]) if sample.x.is_complex() else None


def _replaces(sample: Sample, facts: Facts) -> bool | None:
    return same(sample.results(), [sample.named["src"].expand_as(sample.x)])


def _drops(sample: Sample, facts: Facts) -> bool | None:
    all_dropped, none = sample.given(p=1.0, train=True).results()[0], sample.given(train=False).results()[0]
    return not bool(all_dropped.any()) and same([none], [sample.x])


def _gated(sample: Sample, facts: Facts) -> bool | None:
    axis = sample.named.get("dim", -1)
    left, right = sample.x.chunk(2, axis)
    return same(
        sample.results(), [left * sample.given(**{sample.first: torch.cat([left * 0 + 1, right], axis)}).results()[0]]
    )


def _recurrent(sample: Sample, facts: Facts) -> bool | None:
    units = sample.results()[0].shape[-1] // (2 if sample.named.get("bidirectional") else 1)
    weights = [
        t for t in sample.tensors[1:] if t.ndim == 2 and t.shape[-1] == units and t.shape[0] != sample.x.shape[0]
    ]
    return bool(weights) and all(t.shape[0] == facts.recurrent * units for t in weights)


def _layered(sample: Sample, facts: Facts) -> bool | None:
    """The last layer's part of the last states, of its way forward, is what it makes at the last step."""
    first, last = sample.results()[:2]
    ways, units = first.shape[-1] // last.shape[-1], last.shape[-1]
    ends = [first[:, -1, :units], first[-1, :, :units]] if first.ndim == 3 else [first[-1, :units]]
    return any(same([end], [last[-ways]]) for end in ends if end.shape == last[-ways].shape)


def _attends(sample: Sample, facts: Facts) -> bool | None:
    if sample.named.get("dropout_p"):
        return None
    ones = sample.given(value=torch.ones_like(sample.named["value"])).results()
    return same(ones, [torch.ones_like(t) for t in ones])


def _looks_up(sample: Sample, facts: Facts) -> bool | None:
    moved = sample.given(weight=sample.x + torch.arange(sample.x.shape[1]))
    return is_linear(sample, ("weight",)) and sample.results()[0].shape[-1] == moved.x.shape[-1]


CHECKS: Mapping[str, Callable[[Sample, Facts], bool | None]] = {
    "linear": _linear, "affine": _affine, "coefficients": _coefficients, "degree": _degree, "scaled": _degree,
    "function": _function, "elementwise": lambda sample, _: depends_on_places(sample), "monotone": _monotone,
    "range": _range, "periodic": _periodic, "domain": _domain, "rounds": _rounds, "terms": _terms,
    "powers": _powers, "raises": _raises, "merges": _merges, "adds": _adds, "segments": _segments,
    "picks": _picks, "pads": _pads, "along": _along,
    "extent": _extent, "above": _above, "modulus": _modulus, "replaces": _replaces, "drops": _drops, "gated": _gated,
    "recurrent": _recurrent, "layered": _layered, "attends": _attends, "looks_up": _looks_up,
}  # fmt: skip


def test_every_fact_has_a_check():
    assert CHECKS.keys() == {field.name for field in fields(Facts)}


def test_every_declared_operator_is_run():
    assert not set(FACTS) - NAMED.keys()


@pytest.mark.parametrize("name", NAMED)
def test_what_is_declared_holds(name):
    facts, plain = FACTS.get(name, Facts()), Facts()
    for field, check in CHECKS.items():
        if getattr(facts, field) == getattr(plain, field):
            continue
        told = {each.label: _told(check, each, facts) for op in NAMED[name] for each in samples(op)}
        wrong = [label for label, holds in told.items() if holds is False]
        assert not wrong, f"{field} = {getattr(facts, field)!r} does not hold of {name} at {wrong}"
        assert any(told.values()), f"no sample tells {field} of {name}"


def _told(check: Callable[..., bool | None], sample: Sample, *facts: Facts) -> bool | None:
    """What a check tells; None where the operator refuses its numbers."""
    try:
        return check(sample, *facts)
    except RuntimeError:
        return None


# ---- the converse ---------------------------------------------------------------------------------------------------


def _seen_linear(sample: Sample) -> bool | None:
    return is_linear(sample, (sample.first,))


def _seen_degree(sample: Sample) -> bool | None:
    scaled, before = sample.mapped(lambda x: 17.0 * x, (sample.first,)).results(), sample.results()
    if not all(map(_is_number, before)):
        return None
    largest = [max(float(t.abs().max()) for t in made) for made in (scaled, before)]
    if not min(largest) > 0.0:
        return None
    factor = largest[0] / largest[1]
    return same(scaled, [t * factor for t in before])


def _seen_monotone(sample: Sample) -> bool | None:
    made = curve(sample)
    if made is None:
        return None
    steps = made[made.isfinite()].diff()
    return bool((steps >= 0.0).all()) or bool((steps <= 0.0).all())


def _seen_range(sample: Sample) -> bool | None:
    turned = sample.mapped(lambda x: x - 100.0, (sample.first,))
    made = [t for t in (*sample.results(), *turned.results(), curve(sample)) if t is not None]
    if any(not _is_number(t) for t in made) or any(t.is_complex() for t in (*made, *sample.tensors)):
        return None
    return not any(bool((t < 0.0).any()) for t in made)


def _seen_domain(sample: Sample) -> bool | None:
    made = curve(sample)
    return None if made is None else not bool(made.isfinite().all())


def _seen_rounds(sample: Sample) -> bool | None:
    made = curve(sample)
    return None if made is None else bool((made == made.round()).all()) and bool(((made - GRID).abs() < 1.0).all())


def _seen_picks(sample: Sample) -> bool | None:
    made = sample.results()
    real = not any(t.is_complex() for t in (*made, *sample.tensors))
    return among(made, sample.numbers((sample.first,))) if real and all(map(_is_number, made)) else None


def _seen_pads(sample: Sample) -> bool | None:
    picked = _seen_picks(sample)
    return picked if picked is not False else among(sample.results(), sample.numbers((sample.first,)), 0.0)


def _seen_merges(sample: Sample) -> bool | None:
    made, tensors = sample.results(), sample.tensors
    if len(tensors) < 2 or not all(map(_is_number, made)) or any(t.is_complex() for t in (*made, *tensors)):
        return None
    return among(made, tensors) and not any(among(made, [t]) for t in tensors)


def _seen_adds(sample: Sample) -> bool | None:
    if len(sample.tensors) < 2 or not isinstance(sample.x, torch.Tensor) or sample.x.is_complex():
        return None
    return _adds(sample, Facts())


def _seen_order(sample: Sample) -> bool | None:
    real = isinstance(sample.x, torch.Tensor) and not sample.x.is_complex() and len(sample.tensors) == 1
    return keeps_order(sample) if real and all(map(_is_number, sample.results())) else None


def _seen_coefficients(sample: Sample) -> bool | None:
    real = isinstance(sample.x, torch.Tensor) and not sample.x.is_complex()
    return never_negative(sample) and is_linear(sample, (sample.first,)) if real else None


def _joins(facts: Facts) -> bool:
    return bool(facts.merges or facts.picks or facts.pads or facts.looks_up)


CONVERSE: Mapping[str, tuple[Callable[[Sample], bool | None], Callable[[Any, Facts], bool]]] = {
    "linear": (_seen_linear, lambda op, f: bool(f.linear) or is_product(op)),
    "degree": (_seen_degree, lambda op, f: f.degree is not None or bool(f.linear) or f.raises or is_product(op)),
    "elementwise": (lambda sample: depends_on_places(sample), lambda op, f: f.elementwise),
    "monotone": (_seen_monotone, lambda op, f: f.monotone != 0),
    "range": (_seen_range, lambda op, f: f.range.low >= 0.0 or f.monotone != 0),
    "periodic": (
        lambda sample: _periodic(sample, Facts()) if sample.first and len(sample.tensors) == 1 else None,
        lambda op, f: f.periodic or not f.function,
    ),
    "domain": (_seen_domain, lambda op, f: f.domain != ANY),
    "rounds": (_seen_rounds, lambda op, f: f.rounds),
    "picks": (_seen_picks, lambda op, f: _joins(f) or f.elementwise),
    "pads": (_seen_pads, lambda op, f: _joins(f) or f.elementwise),
    "merges": (_seen_merges, lambda op, f: _joins(f)),
    "adds": (_seen_adds, lambda op, f: f.adds or f.merges == "sum"),
    "along": (_seen_order, lambda op, f: f.along == "order" or _joins(f) or f.elementwise),
    "coefficients": (
        _seen_coefficients,
        lambda op, f: f.coefficients != "" or _joins(f) or f.elementwise or is_product(op),
    ),
}
EXCEPTIONS: Mapping[tuple[str, str], str] = {
    ("xlogy", "linear"): "in its first argument alone; it counts as a function of the second",
    ("xlogy", "degree"): "likewise",
    ("grid_sampler", "coefficients"): "those of cubic functions may be negative",
    ("col2im", "along"): "windows that overlap add up",
    ("prod", "degree"): "as many factors as elements",
    ("index_reduce", "degree"): "by a product, of as many factors as elements go to one place",
    ("scatter_reduce", "adds"): "by sums alone; the argument reduce has others",
    ("remainder", "range"): "as long as the divisor is positive",
    ("normal", "elementwise"): "a draw around each mean, and no function of it",
    ("normal", "adds"): "likewise",
    ("col2im", "picks"): "windows that overlap add up",
    ("col2im", "pads"): "windows that overlap add up",
}
"""What the numbers of samples seem to say of operators that do not declare it, with the reason why it is not so."""


def _has_more(op: torch._ops.OpOverload) -> bool:
    """Whether results are made of the numbers in the first argument, and the record is the place to say how."""
    if is_view(op) or traits(op).fills:
        return False
    read = [sample for sample in samples(op) if sample.numbers((sample.first,))]
    return bool(read) and not any(_told(_is_fixed, sample) for sample in read)


def _is_fixed(sample: Sample) -> bool:
    """Whether the first argument has no influence."""
    return same(sample.results(), sample.mapped(fresh, (sample.first,)).results())


@pytest.mark.parametrize("name", NAMED)
def test_what_holds_is_declared(name):
    facts = FACTS.get(name, Facts())
    told = {
        field: [_told(seen, sample) for op in ops for sample in samples(op)]
        for ops in [[op for op in NAMED[name] if _has_more(op)]]
        for field, (seen, _) in CONVERSE.items()
    }
    for field, (_, said) in CONVERSE.items():
        holds = any(told[field]) and not any(one is False for one in told[field])
        declared = all(said(op, facts) for op in NAMED[name])
        assert not holds or declared or (name, field) in EXCEPTIONS, f"{name} shows {field}, and does not declare it"


@pytest.mark.parametrize("name", NAMED)
def test_what_draws_random_numbers_is_tagged(name):
    for op in NAMED[name]:
        differs = any(not same(sample.results(0), sample.results(1)) for sample in samples(op))
        facts = facts_of(op)
        assert differs == traits(op).random or facts.recurrent or facts.attends  # these draw where they drop alone
