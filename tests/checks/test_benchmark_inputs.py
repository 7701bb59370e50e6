"""The benchmarks' inputs have the statistics that the predictor is told, and their nets are what they are called."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from benchmarks.nets import cells, images, libraries

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


inputs = load("inputs")


def within(samples: np.ndarray, expected: float) -> bool:
    """Whether the mean of independent samples agrees with ``expected``, by four standard errors."""
    return abs(samples.mean() - expected) <= 4 * samples.std(ddof=1) / math.sqrt(len(samples))


@pytest.mark.slow
@pytest.mark.parametrize("displacement", [(0, 0), (0, 1), (1, 0), (2, 3), (7, 5), (11, 0), (11, 15)])
def test_image_profile_is_that_of_the_samples(displacement: tuple[int, int]) -> None:
    height, width = 12, 16
    fields = inputs.image_batch((3000, 3, height, width), torch.Generator().manual_seed(0)).double().numpy()
    profile = inputs.image_profile(height, width)
    assert profile.shape == (height, width)
    assert profile[0, 0] == pytest.approx(1, abs=1e-12)
    dy, dx = displacement
    falling = (fields[..., : height - dy, : width - dx] * fields[..., dy:, dx:]).mean(axis=(2, 3))
    rising = (fields[..., dy:, : width - dx] * fields[..., : height - dy, dx:]).mean(axis=(2, 3))
    assert within(falling.mean(axis=1), profile[dy, dx])
    assert within(rising.mean(axis=1), profile[dy, dx])
    across = (fields[:, 0, : height - dy, : width - dx] * fields[:, 2, dy:, dx:]).mean(axis=(1, 2))
    assert within(across, inputs.RGB_CORRELATION * profile[dy, dx])


def test_images_have_mean_zero_and_are_reproducible() -> None:
    first = inputs.image_batch((500, 3, 8, 8), torch.Generator().manual_seed(1))
    assert torch.equal(first, inputs.image_batch((500, 3, 8, 8), torch.Generator().manual_seed(1)))
    assert within(first.double().mean(dim=(1, 2, 3)).numpy(), 0.0)


@pytest.mark.parametrize("seed", range(8))
def test_pruned_cells_compute_the_cell_with_its_zeros(seed: int) -> None:
    """Pruning only drops edges that carry zeros or reach nothing: the same weights give the same output without it."""
    torch.manual_seed(seed)
    cell = cells.random_cell(seed)
    module = cells.CellModule(cell, 4, bn=False)
    x = torch.randn(2, 4, 6, 6)
    values = [x] + [torch.zeros_like(x) for _ in range(3)]
    ops = dict(zip(module.edges, module.ops, strict=True))
    for source, target in cells.EDGES:
        if cell[source, target] != "none":
            values[target] = values[target] + ops[source, target](values[source])
    assert torch.equal(module(x), values[3])
    assert module(x).abs().sum() > 0


def test_cells_of_equal_seed_are_equal_and_seeds_differ() -> None:
    assert cells.random_cell(10) == cells.random_cell(10)
    assert len({tuple(cells.random_cell(seed).values()) for seed in range(20)}) > 10


@pytest.mark.parametrize(("depth", "bottleneck"), [(20, False), (56, None), (56, True), (164, None)])
@pytest.mark.parametrize("bn", [False, True])
def test_preact_resnet_has_its_depth(depth: int, bottleneck: bool | None, bn: bool) -> None:
    model = images.preact_resnet(depth, bn=bn, bottleneck=bottleneck)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    shortcuts = sum(name.endswith("shortcut") for name, m in model.named_modules() if isinstance(m, torch.nn.Conv2d))
    assert len(layers) - shortcuts == depth
    assert any(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules()) is bn
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 10)


def test_depth_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"depth 57 is not 6n\+2"):
        images.preact_resnet(57)


def test_without_norm_removes_every_norm() -> None:
    model = libraries.without_norm(
        torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.LayerNorm(3)))
    )
    assert not any(isinstance(m, libraries.NORMS) for m in model.modules())
