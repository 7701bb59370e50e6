"""Larger trainings, for a GPU: ResNets on whole pictures of CIFAR-10, and a GPT of 50 million parameters."""

from __future__ import annotations

import training_data
from starts.data import cached, characters
from starts.pictures import BARE, NORMED, ResNet
from starts.task import SGD, Batch, Data, Task, Transformer, classify, next_token, windows
from starts.text import ENDS, TABLES, LanguageModel

PICTURES, HELD_OUT, SIDE = 20_000, 2_048, 32
WIDTH, DEPTH, CONTEXT = 512, 16, 256


@cached
def whole() -> Batch:
    """Return 22,048 pictures of CIFAR-10 in their own size, [22048, 3, 32, 32], and their labels."""
    return training_data.images(training_data.DATASETS / "cifar10", PICTURES + HELD_OUT, SIDE)


def whole_pictures() -> Data:
    """Return batches of 128 pictures."""
    pixels, labels = whole()
    return Data.pool((pixels[:PICTURES], labels[:PICTURES]), (pixels[PICTURES:], labels[PICTURES:]), 128)


def resnet(name: str, field: str, kind: str) -> Task:
    """Return the training of a ResNet-20 of width 32."""
    return Task(
        name,
        field,
        "aside",
        lambda: ResNet(kind, 32, 3),
        whole_pictures,
        classify,
        "sgd",
        SGD,
        400,
        scale="gpu",
    )


TASKS = (
    resnet("large ResNet", NORMED, "post"),
    resnet("large ResNet without norms", BARE, "none"),
    Task(
        "large GPT",
        "language",
        "aside",
        lambda: LanguageModel(width=WIDTH, depth=DEPTH, context=CONTEXT),
        lambda: characters(32, CONTEXT),
        next_token,
        "adamw",
        (3e-4, 1e-3, 3e-3),
        300,
        warmup=30,
        clip=1.0,
        transformer=Transformer(WIDTH, ENDS, TABLES),
        inputs=windows,
        scale="gpu",
    ),
)
