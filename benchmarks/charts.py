"""Charts as SVG, in the style of the guide's pictures: mid-grey text without background, for light and dark pages.

Written by hand and rounded to tenths, so that the same figures give the same bytes with any versions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

GREY, ORANGE, PURPLE, TEAL, BLUE = "#767676", "#d1642a", "#7b61c4", "#1a8f80", "#3a7fc1"
NARROW, WIDE = 400, 560
"""Widths: two charts beside each other, and one alone."""
LETTER = 5.9  # width of a letter at 11 px, on average
LINE = 15
STYLE = (
    f"text {{ font: 11px sans-serif; fill: {GREY} }} .title {{ font-weight: bold; font-size: 12px }} "
    f".grid {{ stroke: {GREY}; stroke-opacity: .25 }} .line {{ fill: none; stroke-width: 1.6 }} "
    f".goal {{ stroke: {GREY}; stroke-width: 1.6; stroke-dasharray: 4 2 }} .band {{ fill: {GREY}; fill-opacity: .13 }}"
)


@dataclass(frozen=True)
class Scale:
    """An axis: what it says, its ends, where lines are drawn across, and whether it is logarithmic."""

    label: str
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value lies between the ends: 0 at the low one, 1 at the high one.

        Raises:
            ValueError: for a value beyond the ends, which the chart would show in a wrong place.
        """
        if not self.low <= value <= self.high:
            raise ValueError(f"{self.label}: {value} is not between {self.low} and {self.high}; widen the axis")
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Key:
    """An entry of a legend: its shape (``dot``, ``square``, ``bar``, ``line``, ``goal``), colour, and text."""

    shape: str
    colour: str
    text: str
    hollow: bool = False


def number(value: float) -> str:
    """Return the label of a tick."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}".replace("-", "−")


class Chart:
    """One chart; ``rows`` names the rows of one whose vertical axis is a list, from the top."""

    def __init__(
        self,
        title: str,
        about: str,
        x: Scale,
        y: Scale | None = None,
        *,
        rows: Sequence[str] = (),
        legend: Sequence[Key] = (),
        width: int = WIDE,
        height: int = 170,
        left: int = 56,
        pitch: int = 16,
    ) -> None:
        self.title, self.about, self.x_scale, self.y_scale = title, about, x, y
        self.rows, self.pitch, self.width, self.left, self.right = rows, pitch, width, left, width - 20
        self.parts: list[str] = [self.text(10, 18, title, kind="title")]
        self.top = self._legend(legend)
        self.floor = self.top + (pitch * len(rows) if rows else height)
        self.height = self.floor + 42
        self._axes()

    def _legend(self, legend: Sequence[Key]) -> int:
        """Draw the legend in as many lines as it takes; return where the plot begins."""
        across, line = 12.0, 0
        for key in legend:
            wide = 24 + LETTER * len(key.text) + 14
            if across > 12 and across + wide - 14 > self.width:
                across, line = 12.0, line + 1
            height = 35 + LINE * line
            middle = across + 8
            if key.shape in ("dot", "square"):
                self.parts.append(mark(middle, height, key.shape, key.colour, hollow=key.hollow))
            elif key.shape == "bar":
                self.parts.append(box(across + 1, height - 4, 14, 8, key.colour))
            else:
                kind = 'class="goal"' if key.shape == "goal" else f'class="line" stroke="{key.colour}"'
                self.parts.append(straight(across, height, across + 17, height, kind))
            self.parts.append(self.text(across + 22, height + 4, key.text))
            across += wide
        return 28 + (LINE * (line + 1) + 4 if legend else 6)

    def _axes(self) -> None:
        grid, middle = 'class="grid"', (self.left + self.right) / 2
        for tick in self.x_scale.ticks:
            across = self.x(tick)
            self.parts.append(straight(across, self.top, across, self.floor, grid))
            self.parts.append(self.text(across, self.floor + 15, number(tick), anchor="middle"))
        self.parts.append(self.text(middle, self.floor + 33, self.x_scale.label, anchor="middle"))
        for row, name in enumerate(self.rows):
            self.parts.append(self.text(self.left - 8, self.row(row) + 4, name, anchor="end"))
        if self.y_scale is not None:
            for tick in self.y_scale.ticks:
                height = self.y(tick)
                self.parts.append(straight(self.left, height, self.right, height, grid))
                self.parts.append(self.text(self.left - 6, height + 4, number(tick), anchor="end"))
            height = (self.top + self.floor) / 2
            turned = f' transform="rotate(-90 14 {height:.1f})"'
            self.parts.append(self.text(14, height, self.y_scale.label, anchor="middle", more=turned))

    def x(self, value: float) -> float:
        """Return where a value lies across."""
        return self.left + self.x_scale.share(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return at which height a value lies."""
        assert self.y_scale is not None
        return self.floor - self.y_scale.share(value) * (self.floor - self.top)

    def row(self, row: float) -> float:
        """Return the height of the middle of a row."""
        return self.top + (row + 0.5) * self.pitch

    def text(
        self, across: float, height: float, text: str, *, anchor: str = "start", kind: str = "", more: str = ""
    ) -> str:
        """Return a text."""
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        where = "" if anchor == "start" else f' text-anchor="{anchor}"'
        look = f' class="{kind}"' if kind else ""
        return f'<text x="{across:.1f}" y="{height:.1f}"{where}{look}{more}>{escaped}</text>'

    def note(self, across: float, height: float, text: str, anchor: str = "start") -> None:
        """Write at a place of the picture."""
        self.parts.append(self.text(across, height, text, anchor=anchor))

    def dot(
        self, across: float, height: float, colour: str, *, shape: str = "dot", hollow: bool = False, size: float = 3
    ) -> None:
        """Draw a dot or square at a value across and at a height of the picture."""
        self.parts.append(mark(self.x(across), height, shape, colour, hollow=hollow, size=size))

    def bar(self, row: float, start: float, stop: float, colour: str, thick: float = 9) -> None:
        """Draw a horizontal bar between two values."""
        a, b = self.x(start), self.x(stop)
        self.parts.append(box(a, self.row(row) - thick / 2, b - a, thick, colour))

    def span(self, row: float, start: float, stop: float, colour: str) -> None:
        """Draw a horizontal line between two values."""
        kind = f'class="line" stroke="{colour}"'
        self.parts.append(straight(self.x(start), self.row(row), self.x(stop), self.row(row), kind))

    def line(self, points: Sequence[tuple[float, float]], colour: str, *, goal: bool = False) -> None:
        """Draw a line through values across and up; ``goal`` for one that shows a goal."""
        told = " ".join(f"{self.x(across):.1f},{self.y(up):.1f}" for across, up in points)
        kind = 'class="goal" fill="none"' if goal else f'class="line" stroke="{colour}"'
        self.parts.append(f'<polyline points="{told}" {kind}/>')

    def goal(self, value: float, start: float = 0, stop: float | None = None) -> None:
        """Draw a goal as an upright line, through all rows or those from ``start`` up to ``stop``."""
        top = self.top + start * self.pitch
        floor = self.floor if stop is None else self.top + stop * self.pitch
        self.parts.append(straight(self.x(value), top, self.x(value), floor, 'class="goal"'))

    def band(self, start: float, stop: float) -> None:
        """Shade what lies between two values across."""
        wide, high = self.x(stop) - self.x(start), self.floor - self.top
        self.parts.append(
            f'<rect x="{self.x(start):.1f}" y="{self.top}" width="{wide:.1f}" height="{high}" class="band"/>'
        )

    def svg(self) -> str:
        """Return the picture."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'role="img">\n<title>{self.title}. {self.about}</title>\n<style>{STYLE}</style>'
        )
        return "\n".join([head, *self.parts, "</svg>\n"])


def mark(across: float, height: float, shape: str, colour: str, *, hollow: bool = False, size: float = 3) -> str:
    """Return a dot or a square, filled or as an outline."""
    look = f'fill="none" stroke="{colour}" stroke-width="1.4"' if hollow else f'fill="{colour}"'
    if shape == "dot":
        return f'<circle cx="{across:.1f}" cy="{height:.1f}" r="{size:g}" {look}/>'
    side = 1.8 * size
    return (
        f'<rect x="{across - side / 2:.1f}" y="{height - side / 2:.1f}" width="{side:.1f}" height="{side:.1f}" {look}/>'
    )


def box(across: float, height: float, wide: float, high: float, colour: str) -> str:
    """Return a filled rectangle."""
    return f'<rect x="{across:.1f}" y="{height:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{colour}"/>'


def straight(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """Return a straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look}/>'
