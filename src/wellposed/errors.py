"""Every error class of wellposed. A message names the node or parameter, what was received, and what to do."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Any

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that move a cursor, colour what follows, turn its direction, or cannot be written."""


def visible(text: str) -> str:
    """Return a text in which characters that a terminal would obey are written out, line ends excepted.

    Names come from models and files that others wrote: one that holds an escape sequence could hide or forge a line.
    """
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in _HIDDEN and c != "\n" else c for c in text
    )


class WellposedError(Exception):
    """Base of every error that wellposed raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())


class TraceError(WellposedError):
    """The model could not be run or recorded.

    Attributes:
        partial: where its forward failed half way, the graph of what ran until then, whose outputs are the tensors
            that nothing had read yet; else None.
    """

    partial: Any = None


class InputError(WellposedError, ValueError):
    """An example input or an input descriptor does not fit the model."""


class OptionError(WellposedError, ValueError):
    """An unknown method, distribution or option, or a value outside its range."""


class RunError(WellposedError, RuntimeError):
    """An operator of a traced model refuses the tensors that it is given in a further pass."""


class RuleError(WellposedError):
    """A rule returned something that cannot be a signal (NaN, negative variance, wrong axes)."""


class UnsupportedError(WellposedError):
    """Operators without a rule under ``strict=True``, or parameters of a kind that no plan covers."""


class PlanError(WellposedError):
    """A plan cannot be made for this model, or does not fit it."""


class RateError(WellposedError, ValueError):
    """A learning rate cannot be worked out, or cannot be carried from one model to another."""


class DivergedError(RateError):
    """Training diverges at every learning rate that was tried, or the loss is not finite before the first step."""


class GradientError(WellposedError, ValueError):
    """Gradients cannot be scored, or an initialisation cannot be refined by them."""


class RankError(WellposedError, RuntimeError):
    """Something failed on another rank of a distributed run; ``kind`` names the class of the error there."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class WorkerError(WellposedError, RuntimeError):
    """A process that was started for a call failed, died, or took too long; the message has its last lines."""


class PlanFileError(WellposedError, ValueError):
    """A plan file is corrupt, of another kind, or of a newer version."""


_ROOM = 200
"""Characters that a list in a message, or the text of another error, may take: a message has five lines at most."""


def in_words(error: BaseException, room: int = _ROOM) -> str:
    """Return the text of an error, cut where it is long; of a class that fails to give one, a word on that."""
    try:
        text = str(error)
        return text if len(text) <= room else f"{text[:room].rpartition(' ')[0]} ..."
    except Exception as failure:  # an exception's own __str__ may raise whatever it likes
        return f"(no text: its __str__ raised {type(failure).__name__})"


def near_matches(received: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the nearest of ``known``, or the whole list when none is near."""
    options = sorted(known)
    close = difflib.get_close_matches(received, options, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(name) for name in close) + "?"
    return "; known: " + joined(map(repr, options), len(options), room=3 * _ROOM // 2)


def listed(names: Iterable[str], limit: int = 5) -> str:
    """Return up to ``limit`` names for a message, and how many more there are."""
    return joined(map(repr, names), limit)


def joined(texts: Iterable[str], limit: int = 8, separator: str = ", ", room: int = _ROOM) -> str:
    """Return up to ``limit`` texts for a message, between them ``", "`` or ``"; "``, and how many more there are.

    Of long texts there are fewer, as ``room`` characters hold, but the first is always there.
    """
    every = list(texts)
    shown = every[:limit]
    while len(shown) > 1 and sum(map(len, shown)) > room:
        shown.pop()
    more = f"{separator.strip(', ')} and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    return separator.join(shown) + more
