"""Which operators apply one function of one number to every element of their first argument."""

from __future__ import annotations

FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "celu", "cos", "cosh", "deg2rad", "elu", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "gelu", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "lgamma", "log", "log10", "log1p", "log2", "log_sigmoid", "logit", "mish", "neg",
    "nan_to_num", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sigmoid", "sign", "silu", "sin", "sinc",
    "sinh", "softplus", "softshrink", "sqrt", "square", "tan", "tanh", "threshold", "trunc", "sgn", "clamp",
    "clamp_min", "clamp_max",
)  # fmt: skip


OTHERS = ("pow.Tensor_Scalar", "pow_.Scalar", "floor_divide.Scalar")
