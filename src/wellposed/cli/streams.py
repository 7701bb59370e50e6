"""Standard output and error: results on the one, all else on the other, in the characters that they take."""

from __future__ import annotations

import codecs
import functools
import io
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from typing import ParamSpec, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from wellposed.showing import visible

P = ParamSpec("P")
T = TypeVar("T")
_results: list[TextIO] = []
"""Standard output, while it is kept for results: see `apart`."""
_PLAIN = str.maketrans(
    {"×": "x", "±": "+-", "·": ".", "–": "-", "−": "-", "…": "...", "‖": "|", "∂": "d", "∞": "inf", "✓": "+", "✗": "x"}
    | {"√": "sqrt ", "Σ": "sum ", "Θ": "Theta", "γ": "gamma", "ν": "nu"}
    | dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True))
)
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
_LOWERED = str.maketrans(_RAISED, "0123456789-")


def prepare_streams() -> None:
    """Let standard output and error take every character: where an encoding lacks one, what comes nearest."""
    codecs.register_error("wellposed.plain", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or "utf" not in stream.encoding):
            stream.reconfigure(errors="wellposed.plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for characters that an encoding lacks, ``^-8`` for ``⁻⁸``, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    parts = re.split(f"([{_RAISED}]+)", error.object[error.start : error.end])
    parts[1::2] = ["^" + raised.translate(_LOWERED) for raised in parts[1::2]]
    return "".join(parts).translate(_PLAIN).encode("ascii", "replace").decode(), error.end


def apart(command: Callable[P, T]) -> Callable[P, T]:
    """Return a command during which what a user's file prints goes to standard error: results alone are on standard
    output.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        """Run the command with standard output kept for results."""
        _results.append(sys.stdout)
        try:
            with redirect_stdout(sys.stderr):
                return command(*args, **kwargs)
        finally:
            _results.pop()

    return run


class _Console(Console):
    """A console that prints control characters of names and files in place of obeying them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with characters that a terminal would obey written out."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def out() -> Console:
    """Return the console for results (standard output)."""
    return _Console(file=_results[-1] if _results else None, highlight=False)


def err() -> Console:
    """Return the console for progress and errors (standard error)."""
    return _Console(stderr=True, highlight=False)
