"""Count standard deviations that plans write outside bounds of plausibility without a word.

    python benchmarks/expressions.py [--count 300] [--method steady] [--seed 0]

Random expressions of exp, sigmoid, tan, 1/x, x·exp(x), powers, shifts and masks stand between three weights. A standard
deviation is outside where it is not between 1e-4 and 1e2 times 1/√fan-in, and silent where no warning of the plan names
the parameter. What half precision does not hold is counted as well: parameters that a plan draws, and writes as zeros.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import WellposedError

LOW, HIGH = 1e-4, 1e2
WIDTH = 16
Function = Callable[[Tensor], Tensor]
STEPS: dict[str, Callable[[random.Random], Function]] = {
    "exp": lambda draw: torch.exp,
    "sigmoid": lambda draw: torch.sigmoid,
    "tan": lambda draw: torch.tan,
    "1/x": lambda draw: torch.reciprocal,
    "x exp(x)": lambda draw: lambda x: x * torch.exp(x),
    "square": lambda draw: torch.square,
    "shift": lambda draw: _shift(draw.choice([-20.0, -5.0, 3.0, 40.0])),
    "factor": lambda draw: _factor(draw.choice([1e-6, 0.01, 30.0, 1e5])),
    "mask": lambda draw: _mask(draw.choice([0.0, 0.5, 1.0])),
    "softplus": lambda draw: nn.functional.softplus,
}


def _shift(by: float) -> Function:
    return lambda x: x + by


def _factor(by: float) -> Function:
    return lambda x: x * by


def _mask(share: float) -> Function:
    kept = (torch.arange(WIDTH) < share * WIDTH).float()
    return lambda x: x * kept


class Expression(nn.Module):
    """Several functions, one after the other."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.names: list[str] = [draw.choice(list(STEPS)) for _ in range(draw.randint(1, 4))]
        self.steps: list[Function] = [STEPS[name](draw) for name in self.names]

    def forward(self, x: Tensor) -> Tensor:
        """Apply them to ``x``, of any shape (..., `WIDTH`)."""
        for step in self.steps:
            x = step(x)
        return x


def net(seed: int) -> nn.Sequential:
    """Return a net of three weights with an expression between any two."""
    draw = random.Random(seed)
    first, second = Expression(draw), Expression(draw)
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), first, nn.Linear(WIDTH, WIDTH), second, nn.Linear(WIDTH, 4))


def outside(plan: wp.Plan) -> list[str]:
    """Return the parameters with a standard deviation outside the bounds that no warning names."""
    said = " ".join(plan.warnings)
    return [
        name
        for name, one in plan.prescriptions.items()
        if one.fan_in and one.std and not LOW <= one.std * math.sqrt(one.fan_in) <= HIGH and repr(name) not in said
    ]


def zeros(model: nn.Module, plan: wp.Plan) -> list[str]:
    """Return the parameters that are drawn, and that this model, which is written to, holds as zeros."""
    try:
        plan.apply_(model)
    except WellposedError:
        return []
    return [name for name, one in model.named_parameters() if plan.prescriptions[name].std and not bool(one.any())]


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--method", default="steady")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    silent, lost, warned, failed = 0, 0, 0, 0
    for seed in range(told.seed, told.seed + told.count):
        model = net(seed)
        names = [part.names for part in model if isinstance(part, Expression)]
        try:
            plan = wp.plan(model, torch.zeros(64, WIDTH), method=told.method)
        except WellposedError as error:
            failed += 1
            print(seed, names, "refused:", str(error)[:100])
            continue
        warned += bool(plan.warnings)
        for name in outside(plan):
            silent += 1
            print(seed, names, name, f"{plan.prescriptions[name].std:.3g}")
        for name in zeros(model.half(), plan):
            lost += 1
            print(seed, names, name, "zeros in float16")
    print(f"{told.count} nets: {warned} with a warning, {failed} refused; {silent} silent standard deviations outside")
    print(f"[{LOW:g}, {HIGH:g}] / √fan-in, {lost} parameters written as zeros in float16")


if __name__ == "__main__":
    main()
