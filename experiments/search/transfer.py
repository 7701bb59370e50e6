"""The transfer task: a DenseNet learns some classes of CIFAR-10; its embedding of the others is what nets are evolved
for. It is computed once for a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.data import Images, load_images
from experiments.feed import device
from experiments.journal import digest
from experiments.search.readers import SPLIT, Examples, missing

KNOWN = 6
"""Classes that the DenseNet learns: those of labels below it."""
SEEN = 500
"""Images of a pass without training."""


def embedded(folder: Path, how: Mapping[str, Any], cache: Path) -> tuple[Examples, int]:
    """Return embeddings of the classes that the DenseNet has not learned, standardised, and the number of classes.

    Args:
        folder: of CIFAR-10's Parquet files.
        how: ``train``, ``test``: images read; ``side`` of them; ``valid``: embeddings to choose by, taken from the end
            of those of the training images; ``growth`` and ``layers`` of the DenseNet, ``epochs``, ``batch`` and
            ``rate`` of its training.
        cache: where the embedding is kept.

    Raises:
        ExperimentError: no such files.
    """
    for split in ("train", "test"):
        if not list(folder.glob(f"{split}*.parquet")):
            raise missing("transfer", folder / f"{split}.parquet", "no such file")
    path = cache / f"transfer-{digest(how)}.pt"
    if not path.exists():
        parts = _embed(load_images(str(folder), how["train"], how["test"], how["side"]), how, path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.part")  # several processes may be at it
        torch.save(parts, fresh)
        os.replace(fresh, path)
    x, y, test_x, test_y, classes = torch.load(path, weights_only=True)
    count = len(x) - how["valid"]
    return Examples(x[:count], y[:count], x[count:], y[count:], test_x, test_y), classes


def _embed(images: Images, how: Mapping[str, Any], path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    from experiments.models import densenet_100
    from experiments.recipe import Recipe
    from experiments.training import train

    x, test_x = images.x[:], images.test_x[:]
    known, test_known = images.y < KNOWN, images.test_y < KNOWN
    torch.manual_seed(SPLIT)
    net = densenet_100(how["growth"], how["layers"], KNOWN)
    learned = Images(
        x[known], images.y[known], test_x[test_known], images.test_y[test_known], KNOWN, images.mean, images.std
    )
    recipe = Recipe(how["epochs"], how["batch"], how["rate"], optimizer="adam")
    train(net, learned, recipe, SPLIT, checkpoint=f"{path.parent.name}/{path.stem}")
    found, test_found = (_features(net, part[~mask]) for part, mask in ((x, known), (test_x, test_known)))
    std, mean = torch.std_mean(found, 0)
    scale = std.clamp_min(1e-6)
    return (
        (found - mean) / scale,
        images.y[~known] - KNOWN,
        (test_found - mean) / scale,
        images.test_y[~test_known] - KNOWN,
        images.classes - KNOWN,
    )


def _features(net: nn.Module, x: Tensor) -> Tensor:
    """Return what the DenseNet's last layer sees."""
    net.to(device()).eval()
    with torch.inference_mode():
        return torch.cat(
            [
                functional.relu(net.get_submodule("features")(part.to(device()))).mean((2, 3)).cpu()
                for part in x.split(SEEN)
            ]
        )
