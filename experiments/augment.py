"""What is done to the images of a batch before a net is trained on them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from benchmarks.nets.libraries import import_extras
from torch import Tensor
from torch.nn import functional

from experiments.data import Images
from experiments.recipe import Recipe

Change = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes a batch's images and labels, and returns them changed; labels may come back as probabilities."""
_BYTES = 255


def augmentation(how: Recipe, images: Images) -> Change:
    """Return what a recipe does to each batch; it draws from PyTorch's own generator."""
    change = crops(images, how.pad) if how.augment is True else strong(images) if how.augment == "strong" else None
    mix = mixing(how, images.classes) if how.mixup or how.cutmix else None

    def changed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = x if change is None else change(x)
        return (x, y) if mix is None else mix(x, y)

    return changed


def crops(images: Images, pad: int | None = None) -> Callable[[Tensor], Tensor]:
    """Return what crops images as `augmented` does, padded by ``pad`` pixels, or an eighth of their side."""
    margin = images.side // 8 if pad is None else pad
    return lambda x: augmented(x, margin)


def augmented(x: Tensor, margin: int) -> Tensor:
    """Return images ``[batch, 3, side, side]`` cropped at random after padding by a margin, half of them mirrored."""
    side = x.shape[-1]
    padded = functional.pad(x, (margin,) * 4)
    top, left = torch.randint(2 * margin + 1, (2, len(x), 1, 1), device=x.device)
    rows = top + torch.arange(side, device=x.device).view(1, -1, 1)
    columns = left + torch.arange(side, device=x.device).view(1, 1, -1)
    cut = padded[torch.arange(len(x), device=x.device).view(-1, 1, 1), :, rows, columns].permute(0, 3, 1, 2)
    mirrored = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    return torch.where(mirrored, cut.flip(3), cut)


def strong(images: Images) -> Callable[[Tensor], Tensor]:
    """Return what crops, resizes and mirrors each image of its own, and applies RandAugment (Cubuk et al. 2020)."""
    import_extras()
    from torchvision.transforms import v2

    side = images.side
    each = v2.Compose(
        [
            v2.RandomResizedCrop(side, scale=(0.08, 1.0), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandAugment(num_ops=2, magnitude=6),
        ]
    )

    def change(x: Tensor) -> Tensor:
        mean, std = images.mean.to(x), images.std.to(x)
        pixels = (x * std + mean).round().clamp(0, _BYTES).to(torch.uint8)
        return (torch.stack([each(picture) for picture in pixels]).to(x) - mean) / std

    return change


def moved() -> Callable[[Tensor], Tensor]:
    """Return what flips, turns (40°), shifts (20 %), shears (0.2) and resizes (20 %) each image of pixels of its own.

    AutoInit, appendix C (transfer learning). "Shear intensity varied up to 20 %" is taken as the tangent of an angle.
    """
    import_extras()
    from torchvision.transforms import v2

    angle = math.degrees(math.atan(0.2))
    each = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomAffine(
                degrees=40,
                translate=(0.2, 0.2),
                scale=(0.8, 1.2),
                shear=(-angle, angle, -angle, angle),
                interpolation=v2.InterpolationMode.BILINEAR,
            ),
        ]
    )
    return lambda x: torch.stack([each(picture) for picture in x])


def mixing(how: Recipe, classes: int) -> Change:
    """Return what mixes the images and labels of a batch: mixup (Zhang et al. 2018), CutMix (Yun et al. 2019)."""
    import_extras()
    from torchvision.transforms import v2

    kinds = ((v2.MixUp, how.mixup), (v2.CutMix, how.cutmix))
    change: Change = v2.RandomChoice([kind(alpha=alpha, num_classes=classes) for kind, alpha in kinds if alpha])
    return change


def centred(x: Tensor, share: float) -> Tensor:
    """Return the centres of images, a share of their side wide, enlarged to their size."""
    side = x.shape[-1]
    if (inner := round(share * side)) == side:
        return x
    edge = (side - inner) // 2
    cut = x[..., edge : edge + inner, edge : edge + inner]
    return functional.interpolate(cut, (side, side), mode="bilinear", antialias=True)
