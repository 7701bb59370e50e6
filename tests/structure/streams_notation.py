"""The notation of the tables of residual streams: a model, and the branches of its streams with what carries them.

A stream is text. Each of its lines names places, blocks in execution order, and after a colon the branches of each,
separated by semicolons, behind the last of which a line ends; braces hold alternatives: ``a.{0,1}`` is ``a.0 a.1``.

* ``CARRIERS @ HOOKS``: parameters, and modules whose outputs are the branch; without hooks, the carriers' modules.
* ``nothing (REASON) @ HOOK not PARAMETERS``: nothing carries, though the parameters look as if they did. All behind the
  first word may be left out.
* ``A beside B``: branches that enter one sum, in any order.
* ``A then B or C or no branch``: answers of which each is right.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

NOTHING = re.compile(r"nothing(?: \((?P<reason>.*)\))?(?: @ (?P<hook>\S+))?(?P<tried>(?: not \S+)*)")


@dataclass(frozen=True)
class Branch:
    """One branch: what carries it, or what the reason why nothing does must say.

    Attributes:
        carriers: names of parameters; () where nothing carries.
        hooks: modules whose outputs, multiplied by c, multiply the whole branch by c, and nothing else; () where no
            module has such an output.
        reason: a pattern, only where nothing carries.
        tried: sets of parameters that look as if they carried it, and do not.
    """

    carriers: tuple[str, ...]
    hooks: tuple[str, ...] = ()
    reason: str = ""
    tried: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        return ", ".join(self.carriers) if self.carriers else f"nothing: {self.reason}"


Part = tuple[tuple[Branch, ...], ...]
"""Sequences of branches, of which one comes next in a stream."""


@dataclass(frozen=True)
class Case:
    """A model, an example input and its streams that are not nested, each as parts in execution order."""

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], dict[str, torch.Tensor]]
    streams: tuple[list[Part], ...]
    beside: float = 0.0
    """What the model adds to what carries: 1 for gains that are kept as 1 + w."""

    def branches(self) -> Iterator[Branch]:
        """Every branch that some answer has, once."""
        parts = itertools.chain.from_iterable(self.streams)
        yield from dict.fromkeys(one for part in parts for option in part for one in option)


def expanded(text: str) -> tuple[str, ...]:
    """Write out the words of a text, each once for every choice of what its braces hold."""
    found: list[str] = []
    for word in text.split():
        pieces = re.split(r"[{}]", word)
        choices = [piece.split(",") if place % 2 else [piece] for place, piece in enumerate(pieces)]
        found += map("".join, itertools.product(*choices))
    return tuple(found)


def branch(place: str, text: str) -> Branch:
    """Read one branch of the block at a place."""

    def here(words: str) -> tuple[str, ...]:
        return tuple(f"{place}.{word}" for word in expanded(words))

    if found := NOTHING.fullmatch(text):
        tried = tuple(here(words) for words in found["tried"].split(" not ")[1:])
        return Branch((), here(found["hook"] or ""), found["reason"] or "", tried)
    carriers, _, hooks = text.partition(" @ ")
    names = here(carriers)
    return Branch(names, here(hooks) or tuple(dict.fromkeys(name.rpartition(".")[0] for name in names)))


def answers(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the sequences of branches of which each is a right answer."""
    if " beside " in text:
        return tuple(itertools.permutations(text.split(" beside ")))
    return tuple(() if one == "no branch" else tuple(one.split(" then ")) for one in text.split(" or "))


def stream(text: str) -> list[Part]:
    """Read a stream."""
    parts: list[Part] = []
    for line in re.sub(r";\s*\n\s*", "; ", text.strip()).splitlines():
        places, _, entries = line.partition(": ")
        for place in expanded(places):
            for entry in entries.split("; "):
                parts.append(tuple(tuple(branch(place, one) for one in answer) for answer in answers(entry)))
    return parts
