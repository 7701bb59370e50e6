"""Larger trainings, for one GPU: ResNets on whole pictures of CIFAR-10, and a GPT of 50 M parameters on bytes."""

from __future__ import annotations

from functools import partial

from starts.attention import CLOSING, GPT
from starts.data import cached, characters
from starts.task import Batch, Data, Task, classify, next_token, windows
from starts.vision import ResNet, no_norm
from training_data import DATA, images

PICTURES, HELD_OUT = 20_000, 2_048
WIDTH, DEPTH, CONTEXT = 512, 16, 256
STEPS = 800


@cached
def whole_cifar() -> Batch:
    """Return 22,048 pictures of CIFAR-10 as they are, [pictures, 3, 32, 32], and their labels."""
    return images(DATA, PICTURES + HELD_OUT, 32)


def whole_pictures() -> Data:
    """Return batches of 128 pictures."""
    pixels, labels = whole_cifar()
    return Data.pool((pixels[:PICTURES], labels[:PICTURES]), (pixels[PICTURES:], labels[PICTURES:]), 128)


LARGE = {
    task.name: task
    for task in (
        Task(
            "large_resnet_plain", "vision, no norms", "ResNet-20, width 32, without norms",
            partial(ResNet, norm=no_norm, width=32), whole_pictures, classify, -5, "sgd", STEPS, clip=1.0,
        ),
        Task(
            "large_resnet_bn", "vision, norms", "ResNet-20, width 32, with BN", partial(ResNet, width=32),
            whole_pictures, classify, -4, "sgd", STEPS,
        ),
        Task(
            "large_gpt", "language", "GPT, 50 M parameters", partial(GPT, WIDTH, DEPTH, 8, CONTEXT),
            partial(characters, 32, CONTEXT), next_token, -8, "adamw", STEPS // 2, warmup=40, clip=1.0, width=WIDTH,
            closing=CLOSING, inputs=windows,
        ),
    )
}  # fmt: skip
"""Some ten minutes for two arms on one H100, by the number of operations."""
