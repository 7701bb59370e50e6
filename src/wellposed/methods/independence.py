"""Whether the values of a parameter look like independent draws of one distribution, and what they are if they do not.

Every test is one that independent draws pass but for a chance below one in a million (a bias of one number: in thirty
thousand): exact zeros, equal numbers, rows that are orthogonal to rounding, neighbours that are alike, and what
`wellposed.methods.arrangements` sees. Of large tensors a sample is looked at first, which most draws end at; what it
finds is then held against the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from wellposed.arrays import array_of, distinct, only_number
from wellposed.graphs import Graph
from wellposed.methods.arrangements import arrangement_of
from wellposed.structure.roles import Role

Pattern = Literal["identity", "orthogonal", "sparse", "structured", "constant"]
Floats = npt.NDArray[Any]

SAMPLE = 256
"""Elements of a tensor that are looked at first: as many neighbours from its beginning, and as many from all over it.
Chosen for cost."""
ZEROS = 1 / 32
"""Share of exact zeros from which on a weight counts as sparse. Chosen: uniform draws of bfloat16 have 1/256. In small
tensors more are asked: normal draws come by pairs, and both of one are 0 once in 2²⁴."""
FEW = 16
"""Different numbers up to which draws of a type of 8 to 11 digits are told from values by a list. Chosen."""
SMOOTH = 0.8
"""Correlation of neighbours from which on values are a smooth function of their index, if they are so many that draws
do not reach it (`_are_alike`). Chosen: 256 draws scatter by 1/16."""
BY_CHANCE = 6.0
"""Standard errors of a correlation that draws of 16 numbers exceed once in ten million times. Chosen."""
ONE_SIGN = 32
"""Elements of a bias that by chance have one sign about once in 2³¹ draws, or more seldom, if the draws have none."""
BEYOND = 4.0
"""Size over fan-in^-1/2, PyTorch's bound on biases, from which on the few numbers of a bias are no draws. Chosen."""
_ROWS = 64
"""Rows whose scalar products show whether a large matrix is orthogonal."""
_LEAST, _LARGEST = 1e-15, 1e10
_ONE_SIGN = "numbers of one sign"
_ROUNDING = 2.0**-6
_SELDOM = 1e-6
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class Found:
    """What the values of a parameter are, where they are no independent draws.

    Attributes:
        pattern: the kind of pattern.
        words: the pattern in words, for messages.
    """

    pattern: Pattern
    words: str


def pattern_of(values: Tensor, head: Floats, groups: int = 1) -> Found | None:
    """Return what a weight's values are if they are no independent draws; None for draws, and for all zeros.

    Args:
        values: the weight, or of a large one on meta a sample of its elements, 1-D.
        head: its first elements (`sample_of`).
        groups: independent blocks along its first axis.
    """
    if len(head) < 2 or not is_filled(head):
        return None
    if head[0] == head[-1] and bool((head == head[0]).all()):
        return _of_equal(values, float(head[0]), groups)
    coarse, spread = _is_half(values) or _is_coarse(head), _from_all_over(values)
    zeros = len(head) + len(spread) - np.count_nonzero(head) - np.count_nonzero(spread)
    looked = len(head) + len(spread)
    if zeros >= max(ZEROS * looked, min(20 if coarse else 5, looked / 4)):
        return _of_zeros(values, groups)
    found = _of_rows(values, groups, coarse) or _of_few(head, coarse)
    arranged = None if found is not None else arrangement_of(values, coarse)
    return found if arranged is None else Found("structured", arranged)


def sample_of(values: Tensor, count: int = SAMPLE) -> Floats:
    """Return up to ``count`` of the first elements of a tensor, in float64."""
    return array_of(first_rows(values)[:count])


def _from_all_over(values: Tensor) -> Floats:
    flat = first_rows(values)
    return array_of(flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE])


def first_rows(values: Tensor) -> Tensor:
    """Return a tensor's elements; of a large one that is scattered in memory those of the first rows."""
    values = values.detach()
    if values.is_contiguous() or not len(values):
        return values.reshape(-1)
    return values[: max(1, _PIECE // max(1, values[0].numel()))].flatten()


def is_filled(values: Floats) -> bool:
    """Whether values are finite and of plausible size. Memory that nothing has filled yet, as after ``to_empty``, holds
    addresses and the like.
    """
    sizes = np.abs(values[values != 0])
    return not len(sizes) or bool(sizes.min() > _LEAST and sizes.max() < _LARGEST)


def _is_half(values: Tensor) -> bool:
    return values.dtype in (torch.float16, torch.bfloat16)


def _is_coarse(values: Floats) -> bool:
    """Whether numbers have no more digits than those of bfloat16 or float16, so that draws may be equal."""
    with np.errstate(over="ignore", under="ignore"):
        narrow = values.astype(np.float32)
        halves = narrow.astype(np.float16)
    return bool((halves == narrow).all() or not (narrow.view(np.uint32) & 0xFFFF).any())


def _of_equal(values: Tensor, number: float, groups: int) -> Found | None:
    """Return the pattern of a weight whose first elements all equal ``number``; None if it is 0 everywhere, or one
    number in too few elements.
    """
    if only_number(values) is not None:
        enough = values.numel() >= (FEW if _is_half(values) else 2)
        return Found("constant", f"all {number:.4g}") if number != 0.0 and enough else None
    return _of_zeros(values, groups) if number == 0.0 else Found("structured", "many equal numbers")


def _of_zeros(values: Tensor, groups: int) -> Found | None:
    """Return the pattern of a weight with many exact zeros; None if it has none."""
    matrix = values.detach() if values.ndim == 2 else _only_tap(values.detach())
    if matrix is not None:
        wide = len(matrix) // groups <= matrix.shape[1]
        alone = bool(((matrix != 0).sum(1 if wide else 0) == 1).all())
        if alone and bool(((numbers := matrix[matrix != 0]) == numbers[0]).all()):
            return Found("identity", f"the identity, or a permutation, times {float(numbers[0]):.4g}")
        if values.ndim > 2 and (found := _of_rows(matrix, groups, _is_half(values))) is not None:
            return found
    share = float((values == 0).sum()) / values.numel()
    if share < 0.25 and (found := _of_rows(values, groups, _is_half(values))) is not None:
        return found
    return Found("sparse", f"{share:.0%} exact zeros") if share > 0.0 else None


def _only_tap(values: Tensor) -> Tensor | None:
    """Return the matrix at the one tap of a kernel that is not 0; None for other kernels."""
    if values.ndim < 3:
        return None
    taps = values.flatten(2)
    held = (taps != 0).flatten(0, 1).any(0).nonzero().flatten()
    return taps[:, :, int(held[0])] if len(held) == 1 else None


def _of_rows(values: Tensor, groups: int, coarse: bool) -> Found | None:
    """Return the pattern of a weight whose shorter side is orthogonal with equal norms, up to rounding, or whose
    neighbours are alike; else None.
    """
    matrix = _first_block(values, groups)
    if matrix is None or (side := len(matrix)) < (8 if coarse else 2):
        return None
    first, second = array_of(matrix[:2])
    length, other, product = float(first @ first), float(second @ second), float(first @ second)
    if len(first) >= FEW and product > SMOOTH * length and _are_alike(first, second):
        return Found("structured", "neighbours alike")
    tolerance = 2e-2 if coarse else 1e-4
    if length == 0.0 or max(abs(other - length), abs(product)) > tolerance * length:
        return None
    some = array_of(matrix[:: max(1, side // _ROWS)][:_ROWS])
    if np.abs(some @ some.T - length * np.eye(len(some))).max() > tolerance * length:
        return None
    turns = side == matrix.shape[1] and abs(length - 1.0) <= tolerance
    return Found("orthogonal", "a rotation" if turns else "orthogonal")


def _first_block(values: Tensor, groups: int) -> Tensor | None:
    """Return the first block of a weight as a matrix of no more rows than columns."""
    if values.ndim < 2 or not len(values) or len(values) % groups:
        return None
    matrix = values.detach()[: len(values) // groups].flatten(1)
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix


def _of_few(head: Floats, coarse: bool) -> Found | None:
    """Return, by the first elements, the pattern of few different numbers or of similar neighbours; else None."""
    numbers = distinct(head)
    if coarse:  # numbers that rounding makes of draws lie as close to each other as numbers of their type can
        apart = float(np.diff(numbers).min()) > _ROUNDING * float(np.abs(numbers).max())
        few = len(numbers) <= FEW and len(head) >= 8 * FEW and apart
    else:
        few = len(numbers) <= len(head) // 2 and len(head) >= 4
    if few:
        return Found("structured", f"{len(numbers)} different numbers among {len(head)}")
    return Found("structured", "neighbours alike") if len(head) == SAMPLE and _neighbours_alike(head) else None


def _neighbours_alike(values: Floats) -> bool:
    return _are_alike(values[1:], values[:-1])


def _are_alike(one: Floats, other: Floats) -> bool:
    """Whether two rows are correlated beyond chance, by Fisher's z, of standard error 1/√(n − 3)."""
    return _correlation(one, other) >= max(SMOOTH, math.tanh(BY_CHANCE / math.sqrt(len(one) - 3)))


def _correlation(one: Floats, other: Floats) -> float:
    one, other = one - one.sum() / len(one), other - other.sum() / len(other)
    total = float(one @ one) * float(other @ other)
    return float(one @ other) / math.sqrt(total) if total > 0.0 else 0.0


def levels_of(values: Tensor, fan_in: int | None = None) -> str | None:
    """Return in words what a bias (a gain, a shift) is set to if it is no draw; None for draws, and for all zeros.

    Args:
        values: the bias.
        fan_in: terms of the sum that it is added to, where that is known.
    """
    array = array_of(values).reshape(-1)
    if not array.any() or not is_filled(array):
        return None
    half, count = _is_half(values), len(array)
    starts = np.flatnonzero(np.diff(array, prepend=np.nan))
    runs = np.diff(starts, append=count)
    if count >= (4 if half else 2) and 4 * (count - len(runs)) >= count - 1:
        return _blocks(array, starts, runs)
    different = distinct(array)
    if len(different) <= min(FEW, count // 8):
        return f"{len(different)} different numbers"
    beyond = count < 8 and fan_in is not None and float(np.abs(array).min()) * fan_in**0.5 >= BEYOND
    if beyond or (not half and all(map(_is_short, different[: FEW + 1]))):
        return _listed(array)
    if fan_in is not None and (at := _gap(different, count)) is not None:
        return f"two groups of numbers, up to {different[at]:.4g} and from {different[at + 1]:.4g} on"
    return _by_shape(array, float(different[0]), float(different[-1])) if count >= ONE_SIGN else None


def _gap(numbers: Floats, count: int) -> int | None:
    """Return the index in sorted numbers before a gap of more than half of their range, which ``count`` uniform draws
    have once in a million times (a prior added to draws); else None.
    """
    steps = np.diff(numbers) / (numbers[-1] - numbers[0]) if len(numbers) > 1 else np.zeros(1)
    share = float(steps.max())
    return int(steps.argmax()) if share > 0.5 and (count - 1) * (1.0 - share) ** (count - 2) < _SELDOM else None


def _by_shape(array: Floats, least: float, most: float) -> str | None:
    """Return in words that many different numbers have one sign, or are smooth in their index; else None."""
    if least > 0 or most < 0:
        return f"{_ONE_SIGN}, {least:.4g} to {most:.4g}"
    return f"neighbours alike, {least:.4g} to {most:.4g}" if _neighbours_alike(array) else None


def varies(gain: Tensor) -> bool:
    """Whether a norm's gain varies from channel to channel as no initialisation does: not by blocks, and not as draws
    about 0 by libraries that draw every parameter.
    """
    low, high = torch.aminmax(gain.detach())
    if bool(low == high):
        return False
    levels = levels_of(gain)
    return not _is_about_zero(gain) if levels is None else levels.startswith(_ONE_SIGN)


def is_trained_gain(graph: Graph, part: Mapping[str, Role], name: str, gain: Tensor) -> bool:
    """Whether a norm's gain varies as after a training. Where the shift is still zero no step was taken: the model
    itself draws gains about 1.
    """
    if not varies(gain):
        return False
    module = name.rpartition(".")[0]
    shifts = [other for other, role in part.items() if role == "shift" and other.rpartition(".")[0] == module]
    held = [graph.parameters[shift].values for shift in shifts]
    return not any(shift is not None and not bool(shift.any()) for shift in held)


def _is_about_zero(values: Tensor) -> bool:
    """Whether the mean of many values is 0 within its standard error; most elements of a trained gain have one sign."""
    var, mean = torch.var_mean(values.detach().double())
    return values.numel() >= FEW and bool(mean**2 * values.numel() < BY_CHANCE**2 * var)


def _is_short(number: float) -> bool:
    """Whether a number of float32 or float64 is one of three decimal digits, as people write them."""
    text = f"{number:.3g}"
    return number in (float(text), float(np.float32(text)))


def _blocks(array: Floats, starts: npt.NDArray[Any], runs: npt.NDArray[Any]) -> str:
    """Return blocks of equal numbers in words, from their ``starts`` and lengths (``runs``)."""
    if len(runs) == 1:
        return f"{array[0]:.4g}"
    if len(runs) > 4:
        return f"{len(runs)} blocks of equal numbers"
    return ", then ".join(f"{array[start]:.4g} × {run}" for start, run in zip(starts, runs, strict=True))


def _listed(array: Floats) -> str:
    shown = ", ".join(f"{number:.4g}" for number in array[:4])
    return shown + (", ..." if len(array) > 4 else "")
