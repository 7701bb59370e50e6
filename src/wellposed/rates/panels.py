"""Loss over learning rate as a picture: panels side by side, as one SVG without any library.

Mid-grey text on no background, so that it reads on light and on dark pages.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wellposed.errors import visible

_GREY = "#767676"
_COLOURS = ((253, 174, 37), (226, 91, 73), (155, 41, 131), (58, 56, 160))
"""Of the smallest size to the largest; sizes between them are mixed."""
_WIDTH, _HEIGHT, _LEFT, _GAP, _BELOW, _IN_A_ROW = 270, 210, 58, 22, 62, 3
_LETTER = 6.1  # width of a letter at 11 px, on average
_STYLE = (
    f"text {{ font: 11px system-ui, sans-serif; fill: {_GREY} }} .name {{ font-weight: 600; font-size: 13px }} "
    f".grid {{ stroke: {_GREY}; stroke-opacity: .2 }} .frame {{ fill: none; stroke: {_GREY}; stroke-opacity: .45 }} "
    f".carried {{ stroke: {_GREY}; stroke-dasharray: 4 3 }} .curve {{ fill: none; stroke-width: 1.7 }}"
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One size.

    Attributes:
        label: its name in the legend.
        losses: by octave of the rate; None where a run diverged.
        best: octave of the best rate.
        spread: the lowest and the highest best rate over seeds, as octaves.
        height: the loss at the best rate.
        untrained: the loss without training.
    """

    label: str
    losses: Mapping[float, float | None]
    best: float
    spread: tuple[float, float]
    height: float
    untrained: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One way: its name, what was found, and its sizes, the smallest first."""

    name: str
    finding: str
    curves: tuple[Curve, ...]


def drawing(panels: Sequence[Panel], across: str, up: str) -> str:
    """Return an SVG of the panels, all on the same axes, with the titles of these."""
    columns = min(len(panels), _IN_A_ROW)
    rows = math.ceil(len(panels) / columns)
    frame = _Frame(panels)
    labels = list(dict.fromkeys(curve.label for panel in panels for curve in panel.curves))
    colours = {label: _colour(index, len(labels)) for index, label in enumerate(labels)}
    width = _LEFT + columns * (_WIDTH + _GAP)
    failures = any(loss is None for panel in panels for curve in panel.curves for loss in curve.losses.values())
    legend, top = _legend(colours, width, failures=failures)
    parts = [*legend]
    for index, panel in enumerate(panels):
        x = _LEFT + (index % columns) * (_WIDTH + _GAP)
        y = top + 40 + (index // columns) * (_HEIGHT + 40 + _BELOW)
        below = index + columns >= len(panels)
        parts += _panel(panel, frame, colours, x, y, f"p{index}", across if below else "", left=index % columns == 0)
        if index % columns == 0:
            middle = y + _HEIGHT / 2
            parts.append(_text(14, middle, up, "middle", more=f' transform="rotate(-90 14 {middle:.1f})"'))
    height = top + rows * (40 + _HEIGHT + _BELOW) - 12
    said = html.escape(visible("; ".join(f"{panel.name}: {panel.finding}" for panel in panels)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img"><title>{said}</title><style>{_STYLE}</style>{"".join(parts)}</svg>\n'
    )


class _Frame:
    """The axes that all panels share."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        """Choose the ranges of losses and of octaves that show every valley, and their ticks."""
        curves = [curve for panel in panels for curve in panel.curves]
        finite = [loss for curve in curves for loss in curve.losses.values() if loss is not None]
        floor, bests = min(finite), [curve.height for curve in curves]
        # The valleys and as much again of the walls: far above them, losses say that a rate is useless, and no more.
        wanted = max(bests) + max(max(bests) - floor, 0.3 * (min(curve.untrained for curve in curves) - floor))
        self.high = min(wanted, max(finite))
        self.high += 0.04 * (self.high - floor) or 1.0
        self.low = floor - 0.06 * (self.high - floor)
        self.ticks = _ticks(self.low, self.high)
        seen = [octave for curve in curves for octave in _in_view(curve.losses, self.high)]
        self.left, self.right = min(seen) - 0.4, max(seen) + 0.4
        span = self.right - self.left
        step = next(step for step in (1, 2, 4, 8, 16, 64) if span / step <= 9)
        self.octaves = [
            octave for octave in range(math.ceil(self.left), math.floor(self.right) + 1) if octave % step == 0
        ]

    def x(self, octave: float) -> float:
        return (octave - self.left) / (self.right - self.left) * _WIDTH

    def y(self, loss: float) -> float:
        return (self.high - loss) / (self.high - self.low) * _HEIGHT


def _in_view(losses: Mapping[float, float | None], high: float) -> list[float]:
    """Return the octaves from the one before the first loss that is not above ``high`` to the one after the last."""
    octaves = sorted(losses)
    shown = [index for index, octave in enumerate(octaves) if (loss := losses[octave]) is not None and loss <= high]
    return octaves[max(shown[0] - 1, 0) : shown[-1] + 2] if shown else octaves


def _panel(
    panel: Panel, frame: _Frame, colours: Mapping[str, str], x: float, y: float, mark: str, across: str, *, left: bool
) -> list[str]:
    """Return the parts of one panel, whose upper left corner is at x and y."""
    parts = [
        _text(x, y - 22, panel.name, kind="name"),
        _text(x, y - 7, panel.finding.replace("-", "−")),
        f'<clipPath id="{mark}"><rect x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}"/></clipPath>',
        f'<rect class="frame" x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}"/>',
    ]
    parts += _grid(frame, x, y, left=left)
    if across:
        parts.append(_text(x + _WIDTH / 2, y + _HEIGHT + 34, across, "middle"))
    carried = x + frame.x(panel.curves[0].best)
    parts.append(_line(carried, y, carried, y + _HEIGHT, "carried"))
    lifted = 0  # crosses of several sizes at one rate stand below each other
    for curve in panel.curves:
        parts.append(f'<g clip-path="url(#{mark})">{_losses(curve, frame, colours[curve.label], x, y)}</g>')
        crosses = _crosses(curve, frame, colours[curve.label], x, y + 8.0 + 9 * lifted)
        parts += crosses
        lifted += bool(crosses)
    for curve in panel.curves:
        parts += _best(curve, frame, colours[curve.label], x, y)
    return parts


def _grid(frame: _Frame, x: float, y: float, *, left: bool) -> Iterator[str]:
    """Yield the lines of octaves and of losses, with their numbers; those of losses on the ``left`` panel alone."""
    for octave in frame.octaves:
        place = x + frame.x(octave)
        yield _line(place, y, place, y + _HEIGHT, "grid")
        yield _text(place, y + _HEIGHT + 15, f"{octave}".replace("-", "−"), "middle")
    for tick in frame.ticks:
        place = y + frame.y(tick)
        yield _line(x, place, x + _WIDTH, place, "grid")
        if left:
            yield _text(x - 6, place + 4, f"{tick:g}".replace("-", "−"), "end")


def _losses(curve: Curve, frame: _Frame, colour: str, x: float, y: float) -> str:
    """Return the line through the losses of one size, with a dot for each."""
    points = [(x + frame.x(o), y + frame.y(loss)) for o, loss in sorted(curve.losses.items()) if loss is not None]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2" fill="{colour}"/>' for a, b in points)
    return f'<polyline class="curve" stroke="{colour}" points="{path}"/>{dots}'


def _crosses(curve: Curve, frame: _Frame, colour: str, x: float, height: float) -> list[str]:
    """Return a cross at ``height`` for each rate in view at which the size diverged."""
    failed = [o for o, loss in curve.losses.items() if loss is None and frame.left <= o <= frame.right]
    return [
        f'<path d="M{x + frame.x(o) - 3:.1f} {height - 3:.1f}l6 6m0 -6l-6 6" stroke="{colour}" stroke-width="1.5" '
        'fill="none"/>'
        for o in failed
    ]


def _best(curve: Curve, frame: _Frame, colour: str, x: float, y: float) -> tuple[str, str]:
    """Return the bar of the best rates between seeds, and the dot of their mean."""
    height = y + frame.y(min(curve.height, frame.high))
    low, high = (x + frame.x(min(max(octave, frame.left), frame.right)) for octave in curve.spread)
    return (
        f'<path d="M{low:.1f} {height:.1f}H{high:.1f}" stroke="{colour}" stroke-width="3" stroke-opacity=".5"/>',
        f'<circle cx="{x + frame.x(curve.best):.1f}" cy="{height:.1f}" r="5" fill="{colour}" stroke="white" '
        'stroke-width="1.4"/>',
    )


def _legend(colours: Mapping[str, str], width: float, *, failures: bool) -> tuple[list[str], float]:
    """Return the legend, in as many lines as it takes, and where it ends."""
    parts, x, y = [], float(_LEFT), 18.0
    entries = [(label, "size") for label in colours]
    entries += [("best at the smallest size", "carried"), *([("diverged", "cross")] if failures else [])]
    for label, kind in entries:
        wide = 24 + _LETTER * len(label) + 12
        if x > _LEFT and x + wide > width:
            x, y = float(_LEFT), y + 17
        if kind == "size":
            parts.append(f'<path d="M{x:.1f} {y:.1f}h18" stroke="{colours[label]}" stroke-width="1.7"/>')
            parts.append(f'<circle cx="{x + 9:.1f}" cy="{y:.1f}" r="4" fill="{colours[label]}"/>')
        elif kind == "carried":
            parts.append(_line(x, y, x + 18, y, "carried"))
        else:
            parts.append(f'<path d="M{x + 6:.1f} {y - 3:.1f}l6 6m0 -6l-6 6" stroke="{_GREY}" stroke-width="1.5"/>')
        parts.append(_text(x + 23, y + 4, label))
        x += wide
    return parts, y + 10


def _colour(index: int, count: int) -> str:
    """Return the colour of a size: from a light one to a dark one."""
    place = index / max(count - 1, 1) * (len(_COLOURS) - 1)
    below = min(int(place), len(_COLOURS) - 2)
    mixed = (a + (b - a) * (place - below) for a, b in zip(_COLOURS[below], _COLOURS[below + 1], strict=True))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between two numbers, about five."""
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw)
    return [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _line(x: float, y: float, to_x: float, to_y: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start", *, kind: str = "", more: str = "") -> str:
    look = f' class="{kind}"' if kind else ""
    where = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{look}{where}{more}>{html.escape(visible(text))}</text>'
