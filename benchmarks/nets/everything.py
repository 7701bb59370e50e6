"""Every net of the benchmarks under one name: those of accuracy, small ones, language models, evolved ones, outsiders.

Nets whose libraries are not installed are left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from .catalogue import NETS, descriptor, input_kinds, net_batch
from .draws import batch_of
from .rare import RARE
from .small import SMALL, Small

os.environ.setdefault("KERAS_BACKEND", "torch")
Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Entry:
    """A net.

    Attributes:
        name: its family and its name in it.
        make: builds it with example inputs, positional ones and those by keyword.
        batch: the batch of a draw; None where inputs are drawn as `wellposed.Input.default` describes them.
        told: what a prediction is told of its inputs; None for the defaults.
        counted: whether it is told what is measured on the batches.
        preload: imports what would otherwise be imported anew in every process that builds it.
    """

    name: str
    make: Callable[[], Made]
    batch: Callable[[int], Any] | None = None
    told: Any = None
    counted: bool = False
    preload: Callable[[], None] = lambda: None

    @property
    def family(self) -> str:
        """What stands before the name."""
        return self.name.partition("/")[0]


def entries(layers: int | None = None, only: Sequence[str] = ("*",)) -> Iterator[Entry]:
    """Yield all nets of the families that the patterns ``only`` name, language models with so many layers (by default
    as many as their benchmark has). What other families need is not imported.
    """
    for family, nets in FAMILIES.items():
        if any(fnmatch(family, pattern.partition("/")[0]) for pattern in only):
            with suppress(ImportError):
                yield from nets(layers)


def _written(family: str, nets: Mapping[str, Small]) -> Iterator[Entry]:
    for name, small in nets.items():
        yield Entry(f"{family}/{name}", lambda small=small: (small.build(), (small.example(),), {}))


def _of_accuracy() -> Iterator[Entry]:
    for name, net in NETS.items():
        kind = input_kinds(net)[-1]
        yield Entry(
            f"accuracy/{name}",
            lambda net=net: (net.build(), (_example(net),), {}),
            lambda draw, net=net, kind=kind: net_batch(net, kind, 1 + draw),
            descriptor(net, kind),
        )


def _language_models(layers: int | None) -> Iterator[Entry]:
    from . import languages

    for name in languages.names():
        yield Entry(
            f"language/{name}",
            lambda name=name: (languages.build(name, layers), (), languages.tokens(0)),
            languages.tokens,
        )


def _evolved_nets() -> Iterator[Entry]:
    from . import evolved

    for family in evolved.FAMILIES:
        for calls in EVOLVED:
            yield Entry(
                f"evolved/{family} {calls}",
                lambda family=family, calls=calls: _evolved(family, calls),
                preload=_import_keras,
            )


def _outsiders() -> Iterator[Entry]:
    from . import outsiders

    for name, (_, (_, make, batch)) in outsiders.entries().items():
        yield Entry(
            f"outsiders/{name}",
            lambda make=make, batch=batch: _outsider(make, batch),
            lambda draw, batch=batch: batch_of(batch, draw),
            counted=True,
            preload=lambda make=make: outsiders.preload(make),
        )


FAMILIES: dict[str, Callable[[int | None], Iterator[Entry]]] = {
    "small": lambda layers: _written("small", SMALL),
    "rare": lambda layers: _written("rare", RARE),
    "accuracy": lambda layers: _of_accuracy(),
    "language": _language_models,
    "evolved": lambda layers: _evolved_nets(),
    "outsiders": lambda layers: _outsiders(),
}
EVOLVED = (60, 300)
"""Calls of evolved networks."""


def every(found: Iterator[Entry], steps: dict[str, int]) -> Iterator[Entry]:
    """Yield of each family every so many-th net, those of a family that is not named all."""
    met: dict[str, int] = {}
    for entry in found:
        at = met.setdefault(entry.family, 0)
        met[entry.family] += 1
        if at % steps.get(entry.family, 1) == 0:
            yield entry


def _example(net: Any) -> torch.Tensor:
    shape = (net.batch, *net.shape)
    return torch.zeros(shape, dtype=torch.int64) + 1 if net.kind == "tokens" else torch.zeros(shape)


def _import_keras() -> None:
    importlib.import_module("wellposed.keras")


def _evolved(family: str, calls: int) -> Made:
    import wellposed.keras as wk

    from .evolved import FAMILIES

    told = FAMILIES[family](calls, 0)
    return wk.trace(wk.from_keras2(told.text, lambdas=told.lambdas)), (), {}


def _outsider(make: Callable[[], nn.Module], batch: Any) -> Made:
    example = batch_of(batch, 0)
    return (make(), (), example) if isinstance(example, dict) else (make(), example, {})
