"""The transfer task: nets are evolved for the embedding of a DenseNet that has learned other classes.

At the paper's scale it has learned ImageNet, and embeds flowers; below, some classes of CIFAR-10, and embeds the
others. An embedding is computed once for a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.nets.libraries import import_extras
from torch import Tensor, nn
from torch.nn import functional

from experiments.augment import moved
from experiments.data import Images, load_images, read_images
from experiments.errors import ExperimentError
from experiments.feed import device
from experiments.journal import digest
from experiments.pictures import Pictures
from experiments.search.readers import SPLIT, Examples

KNOWN = 6
"""Classes that the DenseNet learns: those of labels below it."""
SEEN = 500
"""Images of a pass without training."""


def embedded(source: str, how: Mapping[str, Any], cache: Path) -> tuple[Examples, int]:
    """Return embeddings of the classes that the DenseNet has not learned, standardised, and the number of classes.

    Args:
        source: of CIFAR-10's images.
        how: ``train``, ``test``: images read; ``side`` of them; ``valid``: embeddings to choose by, taken from the end
            of those of the training images; ``growth`` and ``layers`` of the DenseNet, ``epochs``, ``batch`` and
            ``rate`` of its training.
        cache: where the embedding is kept.

    Raises:
        ExperimentError: nothing there.
    """
    path = _path(how, cache)
    x, y, test_x, test_y = _kept(
        path, lambda: _embed(load_images(source, how["train"], how["test"], how["side"]), how, path)
    )
    count = len(x) - how["valid"]
    return Examples(x[:count], y[:count], x[count:], y[count:], test_x, test_y), int(y.max()) + 1


def flowers(how: Mapping[str, Any], cache: Path) -> tuple[Examples, int]:
    """Return embeddings of pictures by a net that timm has with its weights, and the number of classes.

    Each channel is standardised by the training pictures. They are embedded ``copies`` times, each time flipped,
    turned, shifted, sheared and resized at random, so that every epoch of a training has its own: copy after copy in
    ``x``, which is that many times as long as ``y``.

    Args:
        how: ``source``: of the pictures, in splits train, validation and test; ``net``: timm's name, with the weights'
            tag; ``side`` of the pictures; ``copies``.
        cache: where the embedding is kept.

    Raises:
        ExperimentError: no such pictures, or no such weights.
    """
    parts = _kept(_path(how, cache), lambda: _embed_pictures(how))
    return Examples(*parts), int(parts[1].max()) + 1


def _path(how: Mapping[str, Any], cache: Path) -> Path:
    return cache / f"transfer-{digest(how)}.pt"


def _kept(path: Path, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return what is in a file, which is made first where it is not there."""
    if not path.exists():
        parts = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.part")  # several processes may be at it
        torch.save(parts, fresh)
        os.replace(fresh, path)
    found: tuple[Tensor, ...] = torch.load(path, weights_only=True)
    return found


def _embed(images: Images, how: Mapping[str, Any], path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    seen = _features(net, lambda part: functional.relu(net.get_submodule("features")(part)).mean((2, 3)))
    found, test_found = (seen(part[~mask].split(SEEN)) for part, mask in ((x, known), (test_x, test_known)))
    found, test_found = _standardised(found, test_found)
    return found, images.y[~known] - KNOWN, test_found, images.test_y[~test_known] - KNOWN


def _embed_pictures(how: Mapping[str, Any]) -> tuple[Tensor, ...]:
    net, mean, std = _pretrained(how["net"])
    seen = _features(net, net)

    def embed(pixels: Tensor | Pictures, change: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        parts = (part if change is None else change(part) for part in pixels.split(SEEN))
        return seen((part / 255 - mean) / std for part in parts)

    torch.manual_seed(SPLIT)
    x, y = read_images(how["source"], "train", None, how["side"])
    change = moved()
    found = [torch.cat([embed(x, change) for _ in range(how["copies"])]), y]
    for split in ("validation", "test"):
        x, y = read_images(how["source"], split, None, how["side"])
        found += [embed(x), y]
    found[::2] = _standardised(*found[::2])
    return tuple(found)


def _pretrained(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a net of timm without its head, and the mean and standard deviation of its pixels, from 0 to 1."""
    import_extras()
    import timm

    try:
        net = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, ValueError, RuntimeError) as error:  # the hub's, and timm's where it knows no such name
        raise ExperimentError(
            f"task transfer: timm has no weights for {name} ({error}); set tasks.transfer.data.net"
        ) from error
    mean, std = (torch.tensor(net.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    return net, mean, std


def _features(net: nn.Module, see: Callable[[Tensor], Tensor]) -> Callable[[Iterable[Tensor]], Tensor]:
    """Return what gives the features of images in parts, without training."""
    net.to(device()).eval()

    @torch.inference_mode()
    def seen(parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([see(part.to(device())).cpu() for part in parts])

    return seen


def _standardised(found: Tensor, *others: Tensor) -> list[Tensor]:
    """Return features standardised by those of training, which come first."""
    std, mean = torch.std_mean(found, 0)
    return [(part - mean) / std.clamp_min(1e-6) for part in (found, *others)]
