"""Labelled images, read by the ``datasets`` library: from the hub, from a local Parquet folder, or drawn for tests."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments.errors import ExperimentError
from experiments.pictures import Pictures

if TYPE_CHECKING:
    import datasets

SYNTHETIC = "synthetic"
CACHE = Path("build") / "experiments" / "data"
IN_MEMORY = 2**34
"""Bytes of a split's images, as float32, up to which they are held in memory."""
MEASURED = 8192
"""Images of a larger split over which mean and standard deviation are taken."""
_IMAGE, _LABEL = ("img", "image"), ("label", "fine_label", "labels")
_LAYOUT = (
    "expected the layout of the datasets library's CIFAR-10: a folder with train*.parquet and test*.parquet, with a "
    f"column of images ({' or '.join(_IMAGE)}) and one of integers ({' or '.join(_LABEL)}); to get it: "
    "datasets.load_dataset('uoft-cs/cifar10', split=…).to_parquet(…), or give the hub's name itself"
)


@dataclass(frozen=True, slots=True)
class Images:
    """Images, each channel standardised by the training images' mean and standard deviation.

    Attributes:
        x, y: training images ``[count, 3, side, side]`` and labels ``[count]``; images that would fill the memory
            are decoded when they are asked for.
        test_x, test_y: the same for the test.
        classes: number of classes.
        mean, std: of the training images' channels ``[1, 3, 1, 1]``, in pixels from 0 to 255.
    """

    x: Tensor | Pictures
    y: Tensor
    test_x: Tensor | Pictures
    test_y: Tensor
    classes: int
    mean: Tensor
    std: Tensor

    @property
    def side(self) -> int:
        """Height and width, in pixels."""
        return self.x.shape[-1]

    def held_out(self, count: int) -> Images:
        """Return these with the last ``count`` training images as their test, to choose by; all in memory."""
        x, y = self.x[:-count], self.y[:-count]
        return Images(x, y, self.x[-count:], self.y[-count:], self.classes, self.mean, self.std)


def name_of(source: str) -> str:
    """Return the data's name without its place: the last part of a folder, a hub name without its owner."""
    return Path(source).name


@lru_cache(maxsize=2)
def load_images(source: str, train: int | None, test: int | None, side: int) -> Images:
    """Return images from a hub name, a folder of Parquet files, or ``synthetic``.

    Args:
        source: where from; a hub name may have a configuration behind a colon (``frgfm/imagenette:320px``). Where
            there is no split ``test``, ``validation`` is the test.
        train: how many training images, from the first on; None for all.
        test: how many test images.
        side: images are pooled (or enlarged) to this height and width.

    Raises:
        ExperimentError: nothing there, or another schema.
    """
    if source == SYNTHETIC:
        return _drawn(train or 256, test or 64, side)
    parts = [read_images(source, split, count, side) for split, count in (("train", train), ("test", test))]
    (x, y), (test_x, test_y) = parts
    std, mean = torch.std_mean(x[:MEASURED] if isinstance(x, Pictures) else x, dim=(0, 2, 3), keepdim=True)
    x, test_x = (
        pool.standardised(mean, std) if isinstance(pool, Pictures) else (pool - mean) / std for pool in (x, test_x)
    )
    return Images(x, y, test_x, test_y, int(y.max()) + 1, mean, std)


def _drawn(train: int, test: int, side: int, classes: int = 10) -> Images:
    """Return noise around one smooth pattern for each class: something that can be learned in seconds."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(classes, 3, 4, 4, generator=generator)
    patterns = functional.interpolate(coarse, (side, side), mode="bilinear")
    y = torch.arange(train + test) % classes
    x = (patterns[y] + torch.randn(train + test, 3, side, side, generator=generator)) / 2**0.5
    mean, std = torch.full((1, 3, 1, 1), 128.0), torch.full((1, 3, 1, 1), 48.0)  # as if they had been pictures
    return Images(x[:train], y[:train], x[train:], y[train:], classes, mean, std)


def _sized(pixels: Tensor, side: int) -> Tensor:
    floats = pixels.float()
    if pixels.shape[-1] == side:
        return floats
    if pixels.shape[-1] % side == 0:
        return functional.adaptive_avg_pool2d(floats, side)
    return functional.interpolate(floats, (side, side), mode="bilinear", antialias=True)


def read_images(source: str, split: str, count: int | None, side: int) -> tuple[Tensor | Pictures, Tensor]:
    """Return the first ``count`` images of a split as ``[count, 3, side, side]`` of pixels, and their labels.

    Where their sizes differ, or they are decoded when they are asked for, each is cropped at its centre to a square.

    Args:
        source: a hub name or a folder, as `load_images` takes them.
        split: ``train``, ``validation`` or ``test``.
        count: how many, from the first on; None for all.
        side: height and width, in pixels.

    Raises:
        ExperimentError: nothing there, or another schema.
    """
    import numpy as np
    from PIL import ImageOps

    table = load_table(source, split)
    columns = table.column_names
    image = next((name for name in _IMAGE if name in columns), None)
    label = next((name for name in _LABEL if name in columns), None)
    if image is None or label is None:
        raise ExperimentError(f"{source}, {split}: the columns are {', '.join(columns)}; {_LAYOUT}")
    chosen = table.select(range(min(count or len(table), len(table))))
    try:
        if len(chosen) * 12 * side**2 > IN_MEMORY:
            return Pictures(chosen, image, side), torch.tensor(chosen[label][:], dtype=torch.int64)
        decoded = chosen.cast_column(image, _image_feature())
        sizes = {picture.size for picture in decoded[image]}
        shaped = (
            p.convert("RGB") if len(sizes) == 1 else ImageOps.fit(p.convert("RGB"), (side, side))
            for p in decoded[image]
        )
        pixels = np.stack([np.asarray(picture) for picture in shaped])
        labels = torch.tensor(chosen[label][:], dtype=torch.int64)
    except (TypeError, ValueError, OSError) as error:
        raise ExperimentError(
            f"{source}, {split}: {image!r} and {label!r} cannot be read ({error}); {_LAYOUT}"
        ) from error
    # Contiguous, as loaders give images: in the pictures' own layout (channels last) oneDNN's backward pass of strided
    # 1×1 convolutions of few channels wrote out of bounds on one thread (torch 2.13; in ordinary training too).
    return _sized(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), side), labels


def _image_feature() -> Any:
    import datasets

    return datasets.Image()


def load_table(source: str, split: str, layout: str = _LAYOUT) -> datasets.Dataset:
    """Return a split's rows, from a hub name or a folder of Parquet files; errors name the layout that is expected.

    Raises:
        ExperimentError: nothing there.
    """
    import datasets

    datasets.disable_progress_bars()
    names = ("test", "validation") if split == "test" else (split,)
    folder = Path(source).expanduser()
    if folder.is_dir():
        files = next((found for name in names if (found := sorted(map(str, folder.rglob(f"{name}*.parquet"))))), [])
        if not files:
            raise ExperimentError(f"{source} holds no {split}*.parquet; {layout}")
        try:
            return datasets.Dataset.from_parquet(files, cache_dir=str(CACHE))
        except Exception as error:  # of pyarrow, or of the builder around it
            raise ExperimentError(f"{source}, {split}: no Parquet file can be read ({error}); {layout}") from error
    if source.startswith((".", "~", os.sep)) or source.count("/") > 1:
        raise ExperimentError(f"no folder {source}; {layout}")
    path, _, configuration = source.partition(":")
    failed: list[Exception] = []
    for name in names:
        try:
            return datasets.load_dataset(path, configuration or None, split=name, cache_dir=str(CACHE))
        except Exception as error:  # the hub's client raises errors of many libraries
            failed.append(error)
    raise ExperimentError(f"{source!r} cannot be had from the hub ({failed[0]}); {layout}") from failed[0]
