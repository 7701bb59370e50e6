"""Where rules for learning rates fail: what orders the best rates instead, family by family.

    python benchmarks/mechanisms.py [--families convolutions ...] [--images DIR] [--out DIR]

The best rates are those of the stored results of rates.py in ``--out``. Against them stand, for every net, means over
three draws of its weights before training:

- *sharpness*: the largest eigenvalue of the Hessian of the loss on 128 pictures (Lanczos), and the same where batch
  norms keep the statistics of that batch;
- the parts of rule `kernel`, on white noise and on smooth pictures: K of one input, K̄ of two;
- the first layer's share of the tangent kernel, against what the rule leaves unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import wellposed as wp
from common import markdown, write
from rated_families import Case, families
from rates import stored, told
from rates_tables import base_of, correlation, true_of
from training_data import images
from wellposed.rates import relative

FAMILIES = ("std128", "mixed64", "residual64", "batchnorm64", "cnn", "convolutions", "convolutions-flat", "vit")
SAMPLES, ROUNDS, DRAWS = 128, 20, 3
COLUMNS = {
    "family": "family",
    "what": "what",
    "r": "r (log)",
    "slope": "slope",
    "median": "octaves (median) with that slope",
}


def sharpness(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the largest eigenvalue of the Hessian of the cross entropy, by Lanczos with full orthogonalisation."""
    with sdpa_kernel(SDPBackend.MATH):
        loss = functional.cross_entropy(model(x), y)
        parameters = [p for p in model.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)

        def product(vector: Tensor) -> Tensor:
            parts = vector.split([p.numel() for p in parameters])
            shaped = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
            found = torch.autograd.grad(slopes, parameters, shaped, retain_graph=True)
            return torch.cat([one.detach().flatten() for one in found])

        start = torch.cat([torch.randn_like(p).flatten() for p in parameters])
        basis, diagonal, beside = [start / start.norm()], [], []
        for _ in range(ROUNDS):
            image = product(basis[-1])
            diagonal.append(float(image @ basis[-1]))
            image = image - sum((image @ one) * one for one in basis)
            beside.append(float(image.norm()))
            basis.append(image / beside[-1])
    tridiagonal = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    return float(np.linalg.eigvalsh(tridiagonal)[-1])


def frozen(model: nn.Module, x: Tensor) -> nn.Module:
    """Return the model in evaluation, its batch norms with the statistics of a batch."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # the statistics of the last batch alone
    with torch.no_grad():
        model(x)
    return model.eval()


def tangent_shares(model: nn.Module, case: Case) -> dict[str, float]:
    """Return each parameter's share of the tangent kernel, in the order of the model's parameters."""
    multipliers = relative(model, case.example, rule="ntk", per_layer=True).per_parameter
    whole = sum(1 / each for each in multipliers.values())
    return {name: 1 / multipliers[name] / whole for name, _ in model.named_parameters() if name in multipliers}


def quantities(case: Case, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return log2 of what is compared, the mean over draws."""
    x = x.flatten(1) if case.kind == "flat" else x
    draws: list[dict[str, float]] = []
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        model = case.build()
        found = {"sharpness": sharpness(model, x, y)}
        inputs = {"": None, ", pictures": wp.Input(kind="image") if case.kind == "images" else None}
        for name, described in inputs.items():
            if not name or described is not None:
                parts = relative(model, case.example, rule="kernel", inputs=described).figures
                found |= {f"K{name}": parts["own"], f"K̄{name}": parts["shared"]}
        shares = tangent_shares(model, case)
        found["first layer's share"] = next(shares[name] for name in shares if name.endswith("weight"))
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
            found["sharpness, frozen statistics"] = sharpness(frozen(model, x), x, y)
        draws.append(found)
    return {name: float(np.mean([math.log2(max(one[name], 1e-9)) for one in draws])) for name in draws[0]}


def line(family: str, what: str, of: Sequence[float], true: np.ndarray) -> dict[str, Any]:
    """Return how what is compared stands to the best rates: the slope is that of least squares."""
    slope, offset = np.polyfit(of, true, 1)
    errors = np.abs(true - offset - slope * np.asarray(of))
    r = correlation(np.asarray(of), true)
    return {"family": family, "what": what, "r": r, "slope": float(slope), "median": float(np.median(errors))}


def main() -> None:
    """Measure, and write the tables."""
    options = told(__doc__, FAMILIES)
    torch.set_num_threads(1)
    x, y = images(options.images, SAMPLES)
    rows: list[dict[str, Any]] = []
    for family, cases in families(options.families).items():
        nets = stored(options.out, family)
        found = [quantities(case, x, y) for case in cases]
        true = true_of(nets)
        rule = np.array([row["rules"]["kernel"] for row in nets])
        left = true - rule - (true - rule)[base_of(nets)]
        for what in ("rule kernel", *found[0]):
            of = rule if what == "rule kernel" else np.array([one[what] for one in found])
            share = what == "first layer's share"
            rows.append(line(family, f"{what}, against the rest" if share else what, of, left if share else true))
            print(markdown(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    write("mechanisms", markdown(rows, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
