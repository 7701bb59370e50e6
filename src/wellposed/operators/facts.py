"""What operators do, whatever they are given: one record for each plain name, that every reader asks.

A fact stands once. What a view moves stands in `wellposed.operators.views`, what a product sums over in
`wellposed.operators.product`, where a norm takes its gain in `wellposed.operators.norms`, and what an operator draws or
writes in `wellposed.graphs.operators.traits`: none of that is repeated here. A test runs every operator and holds its
numbers against its record (`tests/operators/test_facts.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch

from wellposed.operators.schema import plain_name

Group = tuple[str, ...]
"""Names of arguments; ``self`` stands for the first one too, where an overload gives that another name."""


class Bounds(NamedTuple):
    """The smallest and the largest number that an element may be."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def sign(self) -> int:
        """1 of what is never negative, -1 of what is never positive, else 0."""
        return int(self.low >= 0.0) - int(self.high <= 0.0)


ANY = Bounds()
POSITIVE = Bounds(0.0)


@dataclass(frozen=True, slots=True)
class Facts:
    """What an operator does.

    Attributes:
        linear: groups of arguments; the result is a linear map of those in one group together, with all others held.
        affine: whether it is a linear map of its first argument, plus a constant.
        coefficients: of a linear map of the first argument: never negative, or those of means (they add up to 1).
        degree: the power of c > 0 by which the result follows c times the arguments ``scaled``.
        scaled: these arguments.
        function: whether it applies one function of one number to every element of its one tensor.
        elementwise: whether an element of the result depends on the elements in its place alone.
        monotone: 1 where an elementwise result never falls while its arguments rise, -1 where it never rises.
        range: the bounds of its results.
        periodic: whether an elementwise function has the period 2π.
        domain: the bounds between which a function is real and has no pole.
        rounds: whether it gives the nearest whole number on some side.
        terms: signs of its operands, where it adds them up (`arithmetic.terms_of`).
        powers: powers of its operands, where it multiplies them (`arithmetic.factors_of`).
        raises: whether it raises its first argument to the power of its second.
        merges: how it brings several tensors together: as a weighted sum, side by side along an axis or along a new
            one (``cat``, ``stack``), written into the first at places that are fixed or found (``write``, ``scatter``),
            or by a condition (``choice``).
        adds: whether it makes a term and adds it to its first argument, so that no factor can be put between.
        segments: whether it combines all that goes to one place, by its argument ``reduce``.
        picks: whether its results are elements of its arguments, found by index, by their order or by neither.
        pads: whether its results hold elements of its first argument, and a number (``value``, or else 0).
        along: what it forms along axes: sums, sums of squares, order statistics, products, shares of a sum of
            exponentials, or logarithms of such a sum.
        extent: whether that is one number for all of an axis, or one for all up to each place.
        above: whether it tells where its first argument is larger than its second.
        modulus: whether it takes complex numbers by their modulus.
        replaces: whether the second argument is written over all of the first.
        drops: whether it multiplies by a random mask of probability and training flag, its next two arguments.
        gated: whether it multiplies one half of its argument by a function of the other.
        recurrent: how many gates the weights of a recurrent layer or cell stack.
        layered: whether its results after the first stack layers and directions along their first axis.
        attends: whether it is all of an attention.
        looks_up: whether it looks rows of a table up.
    """

    linear: tuple[Group, ...] = ()
    affine: bool = False
    coefficients: Literal["", "positive", "mean"] = ""
    degree: float | None = None
    scaled: Group = ()
    function: bool = False
    elementwise: bool = False
    monotone: int = 0
    range: Bounds = ANY
    periodic: bool = False
    domain: Bounds = ANY
    rounds: bool = False
    terms: tuple[float, ...] = ()
    powers: tuple[float, ...] = ()
    raises: bool = False
    merges: Literal["", "sum", "cat", "stack", "write", "scatter", "choice"] = ""
    adds: bool = False
    segments: bool = False
    picks: Literal["", "index", "order", "place"] = ""
    pads: bool = False
    along: Literal["", "sum", "square", "order", "product", "exponentials", "logarithm"] = ""
    extent: Literal["", "axis", "running"] = ""
    above: bool = False
    modulus: bool = False
    replaces: bool = False
    drops: bool = False
    gated: bool = False
    recurrent: int = 0
    layered: bool = False
    attends: bool = False
    looks_up: bool = False

    @property
    def indexed(self) -> bool:
        """Whether it picks elements, or writes to places, that indices or masks name."""
        return self.picks == "index" or self.merges == "scatter"

    @property
    def joins(self) -> bool:
        """Whether it puts tensors side by side, none of them written into another."""
        return self.merges in ("cat", "stack")

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies two tensors element by element."""
        return self.powers == (1.0, 1.0)

    @property
    def subtracts(self) -> bool:
        """Whether it takes one operand from another."""
        return len(self.terms) > 1 and -1.0 in self.terms

    @property
    def chooses(self) -> bool:
        """Whether its results along axes have no closed form: order statistics, products and logarithms of sums."""
        return self.along in ("order", "product", "logarithm")

    @property
    def active(self) -> bool:
        """Whether it applies a function that is not linear to every element, or to shares of a sum."""
        curved = self.elementwise and not self.linear and not self.affine
        return curved or (self.along in ("exponentials", "logarithm") and not self.extent)


_DECLARED: dict[str, dict[str, Any]] = defaultdict(dict)


def _are(names: str, **facts: Any) -> None:
    """Declare facts of operators; each fact of each once."""
    for name in names.split():
        assert _DECLARED[name].keys().isdisjoint(facts), f"{name} has one of these facts already: {sorted(facts)}"
        _DECLARED[name].update(facts)


def _linear(names: str, *groups: str, **facts: Any) -> None:
    """Declare operators that are linear in each of some groups of arguments; of one group, their degree follows."""
    split = tuple(tuple(group.split()) for group in groups)
    degree = {"degree": 1.0, "scaled": split[0]} if len(split) == 1 else {}
    _are(names, linear=split, **degree, **facts)


def _homogeneous(names: str, degree: float, scaled: str = "self", **facts: Any) -> None:
    """Declare operators that follow the scale of some arguments by a power."""
    _are(names, degree=degree, scaled=tuple(scaled.split()), **facts)


# ---- element by element ---------------------------------------------------------------------------------------------

# fmt: off
_are("abs acos acosh asin asinh atan atanh ceil celu cos cosh deg2rad elu erf erfc erfinv exp exp2 expm1 floor frac "
     "gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu lgamma log log10 log1p log2 log_sigmoid logit mish neg "
     "nan_to_num reciprocal relu relu6 round rsqrt selu sigmoid sign silu sin sinc sinh softplus softshrink sqrt "
     "square tan tanh threshold trunc sgn clamp clamp_min clamp_max", function=True, elementwise=True)
_are("add sub rsub lerp mul div where masked_fill addcmul addcdiv copy detach alias lift_fresh complex real "
     "imag conj _conj conj_physical _conj_physical dropout feature_dropout native_dropout alpha_dropout "
     "feature_alpha_dropout prelu rrelu pow gt lt ge le eq ne logical_not logical_and logical_or logical_xor "
     "bitwise_not bitwise_and bitwise_or bitwise_xor isnan remainder fmod floor_divide maximum minimum fmax fmin "
     "atan2 hypot logaddexp xlogy", elementwise=True)
_linear("elu_backward gelu_backward hardsigmoid_backward hardswish_backward hardtanh_backward leaky_relu_backward "
        "mish_backward sigmoid_backward silu_backward softplus_backward tanh_backward threshold_backward",
        "grad_output", elementwise=True)
_are("acosh asin asinh atan atanh ceil celu clamp clamp_max clamp_min deg2rad elu erf erfinv exp exp2 expm1 floor "
     "hardshrink hardsigmoid hardtanh leaky_relu log log10 log1p log2 log_sigmoid logit maximum minimum fmax fmin "
     "nan_to_num relu relu6 round selu sgn sigmoid sign sinh softplus softshrink sqrt tanh trunc", monotone=1)
_are("acos erfc neg rsqrt", monotone=-1)
_are("ceil floor round trunc", rounds=True)
_are("acos asin atanh erfinv", domain=Bounds(-1.0, 1.0))
_are("logit", domain=Bounds(0.0, 1.0))
_are("log log10 log2 pow reciprocal rsqrt sqrt lgamma", domain=POSITIVE)
_are("log1p", domain=Bounds(-1.0))
_are("acosh", domain=Bounds(1.0))
_are("abs square std var norm linalg_norm linalg_vector_norm hypot rnn_relu rnn_relu_cell mse_loss l1_loss huber_loss "
     "smooth_l1_loss cross_entropy_loss binary_cross_entropy", range=POSITIVE)
_are("softmax _softmax _safe_softmax", range=Bounds(0.0, 1.0))
_are("log_softmax _log_softmax", range=Bounds(-math.inf, 0.0))
_are("cosh", range=Bounds(1.0))
_are("cos sin", range=Bounds(-1.0, 1.0), periodic=True)
_are("tan", periodic=True)
_are("zeros zeros_like new_zeros zero _efficientzerotensor", range=Bounds(0.0, 0.0))
_are("gt ge", above=True)
_are("abs", modulus=True)
_homogeneous("abs relu leaky_relu prelu rrelu", 1.0)
_homogeneous("clamp", 1.0, "self min max")
_homogeneous("clamp_min", 1.0, "self min")
_homogeneous("clamp_max", 1.0, "self max")
_homogeneous("hypot", 1.0, "self other")
_homogeneous("maximum minimum fmax fmin", 1.0, "self other", picks="order")
_homogeneous("atan2", 0.0, "self other")
_homogeneous("sign sgn", 0.0)
_homogeneous("square", 2.0)
_homogeneous("sqrt", 0.5)
_homogeneous("rsqrt", -0.5)
_homogeneous("reciprocal", -1.0)

# ---- arithmetic -----------------------------------------------------------------------------------------------------

_linear("add", "self other", terms=(1.0, 1.0), merges="sum")
_linear("sub", "self other", terms=(1.0, -1.0), merges="sum")
_linear("rsub", "self other", terms=(-1.0, 1.0), merges="sum")
_linear("neg", "self", terms=(-1.0,))
_linear("lerp", "self end", merges="sum")
_linear("mul", "self", "other", powers=(1.0, 1.0))
_linear("div", "self", powers=(1.0, -1.0))
_are("pow", raises=True)
_linear("deg2rad nan_to_num real imag conj _conj conj_physical _conj_physical", "self")
_linear("complex", "real imag")
_linear("view_as_real view_as_complex detach alias lift_fresh", "self")
_linear("copy", "src", replaces=True)
_linear("dropout native_dropout feature_dropout", "self", drops=True, coefficients="positive")
_are("alpha_dropout feature_alpha_dropout", affine=True, drops=True)
_are("fill_diagonal", affine=True)

# ---- several tensors ------------------------------------------------------------------------------------------------

_linear("cat hstack vstack", "tensors", merges="cat")
_linear("stack", "tensors", merges="stack")
_linear("where", "self other", merges="choice")
_linear("masked_fill", "self value", merges="choice")
_linear("slice_scatter select_scatter", "self src", merges="write")
_linear("view_write", "base written", merges="write")
_linear("index_put", "self values", merges="scatter")
_linear("scatter", "self src value", merges="scatter")
_linear("scatter_add", "self src", merges="scatter", adds=True)
_linear("index_add", "self source", merges="scatter", adds=True)
_linear("index_copy masked_scatter", "self source", merges="scatter")
_are("scatter_reduce", merges="scatter", segments=True, degree=1.0, scaled=("self", "src"))
_linear("addcmul", "self tensor1", "self tensor2", adds=True)
_linear("addcdiv", "self tensor1", adds=True)
_linear("addbmm", "self batch1", "self batch2")
_are("addmm baddbmm addbmm", adds=True)
_linear("kron", "self", "other")
_are("glu", gated=True)
_are("lstm lstm_cell", recurrent=4)
_are("gru gru_cell", recurrent=3)
_are("rnn_tanh rnn_relu rnn_tanh_cell rnn_relu_cell", recurrent=1)
_are("lstm gru rnn_tanh rnn_relu", layered=True)
_are("scaled_dot_product_attention", attends=True)
_linear("scaled_dot_product_attention", "value")
_linear("embedding embedding_bag _embedding_bag", "weight", looks_up=True)
_linear("_weight_norm", "g")

# ---- along axes -----------------------------------------------------------------------------------------------------

_linear("sum", "self", along="sum", extent="axis", coefficients="positive")
_linear("mean", "self", along="sum", extent="axis", coefficients="mean")
_linear("cumsum", "self", along="sum", extent="running", coefficients="positive")
_are("var std var_mean std_mean norm linalg_vector_norm linalg_norm", along="square", extent="axis")
_are("amax amin max min aminmax median mode kthvalue argmax argmin", along="order", extent="axis")
_are("cummax cummin", along="order", extent="running")
_are("sort topk argsort", along="order")
_are("prod", along="product", extent="axis")
_are("cumprod", along="product", extent="running")
_are("logsumexp", along="logarithm", extent="axis")
_are("log_softmax _log_softmax", along="logarithm")
_are("softmax _softmax _safe_softmax", along="exponentials")
_homogeneous("amax amin aminmax max min median mode kthvalue cummax cummin sort topk", 1.0, picks="order")
_homogeneous("std std_mean norm linalg_vector_norm linalg_norm", 1.0)
_homogeneous("var", 2.0)

# ---- elements and windows -------------------------------------------------------------------------------------------

_homogeneous("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices adaptive_max_pool1d adaptive_max_pool2d "
             "adaptive_max_pool3d", 1.0, picks="order")
_linear("index index_select gather take take_along_dim", "self", picks="index")
_linear("diagonal channel_shuffle fft_fftshift fft_ifftshift upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "_upsample_nearest_exact2d as_strided", "self", picks="place")
_linear("broadcast_tensors", "tensors", picks="place")
_linear("tril triu diag im2col", "self", pads=True)
_linear("pad constant_pad_nd", "self value", pads=True)
_are("relu", pads=True)
_linear("col2im avg_pool1d avg_pool2d avg_pool3d", "self", coefficients="positive")
_linear("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d",
        "self", coefficients="mean")
_linear("upsample_linear1d upsample_bilinear2d upsample_trilinear3d _upsample_bilinear2d_aa", "self",
        coefficients="mean")
_linear("upsample_bicubic2d _upsample_bicubic2d_aa grid_sampler", "self")
_linear("diff", "self prepend append")
_linear(" ".join(f"fft_{kind}{n}" for kind in ("fft", "ifft", "rfft", "irfft") for n in ("", "2", "n")), "self")
_linear("_fft_r2c _fft_c2r _fft_c2c", "self")
# fmt: on

FACTS: Mapping[str, Facts] = {name: Facts(**declared) for name, declared in _DECLARED.items()}
"""The records by plain name."""


@cache
def facts_of(op: torch._ops.OpOverload) -> Facts:
    """Return the facts of an operator; those of one that is not declared say nothing."""
    return FACTS.get(plain_name(op), Facts())
