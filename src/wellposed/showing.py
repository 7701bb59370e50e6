"""How results show themselves at a prompt and in a notebook: in one line, and a few rows of a table."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wellposed.errors import visible as visible

if TYPE_CHECKING:
    from wellposed.tables import Text

ROWS = 10
"""Most rows that an object shows of itself."""
_LONGEST = 60
"""Characters of a cell; of longer ones both ends are shown."""


def in_line(text: str) -> str:
    """Return a text on one line, in which characters that a terminal would obey are written out."""
    return visible(text).replace("\n", " ")


def cell(text: str) -> Text:
    """Return a cell of a rich table that shows a text as it is: no markup, and nothing that a terminal would obey."""
    from wellposed.tables import Text

    return Text(visible(text))


def by_size(shape: Sequence[int]) -> str:
    """Return a shape for people: ``"64×3×7×7"``, or ``"scalar"``."""
    return "×".join(map(str, shape)) or "scalar"


@dataclass(frozen=True, slots=True)
class Summary:
    """The few lines that an object shows of itself.

    Attributes:
        line: what it is.
        columns: titles; empty where the line says it all.
        rows: the cells of at most `ROWS` rows.
        more: how many rows are left out.
        order: which rows are shown where some are left out, in words.
    """

    line: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    more: int = 0
    order: str = ""

    @property
    def rest(self) -> str:
        """What is left out, in words; ``""`` where nothing is."""
        return f"… {self.more:,} more{f' ({self.order} are shown)' if self.order else ''}" if self.more else ""


class Shown(ABC):
    """An object that shows itself in a few lines, however much it holds."""

    __slots__ = ()

    @abstractmethod
    def _summary(self) -> Summary:
        """Return what is shown."""

    def __repr__(self) -> str:
        return as_text(self._summary())

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return as_html(self._summary())


def as_text(summary: Summary) -> str:
    """Return a summary as lines of text."""
    lines = [in_line(summary.line)]
    if summary.rows:
        cells = [[short(cell) for cell in row] for row in (summary.columns, *summary.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]
    if summary.rest:
        lines.append(f"  {summary.rest}")
    return "\n".join(lines)


def as_html(summary: Summary) -> str:
    """Return a summary as HTML, for a notebook."""

    def row(tag: str, cells: Iterable[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(short(cell))}</{tag}>" for cell in cells) + "</tr>"

    parts = [f"<p>{html.escape(visible(summary.line))}</p>"]
    if summary.rows:
        body = "".join(row("td", cells) for cells in summary.rows)
        parts.append(f"<table><thead>{row('th', summary.columns)}</thead><tbody>{body}</tbody></table>")
    if summary.rest:
        parts.append(f"<p>{html.escape(summary.rest)}</p>")
    return f"<div>{''.join(parts)}</div>"


def short(text: str) -> str:
    """Return both ends of a text, on one line."""
    shown = in_line(text)
    half = _LONGEST // 2
    return shown if len(shown) <= _LONGEST else f"{shown[: half - 1]}…{shown[-half:]}"
