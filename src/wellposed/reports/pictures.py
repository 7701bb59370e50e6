"""The small picture of what drawing the weights anew changes: signals or gradients over depth, before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wellposed.reports.record import Direction, Initialisation, Measure, Record
from wellposed.reports.spans import factor_text, figures, judged_names

WIDTH, HEIGHT, LEFT, EDGE = 420, 130, 62, 12
_WORDS: Mapping[Measure, str] = {
    "forward": "size of the signals over depth",
    "backward": "size of the gradients, times their signals, over depth",
    "alike": "what differs between inputs, of the signals over depth",
}


def seen(item: Initialisation, direction: Direction) -> dict[str, float]:
    """Return what a direction is judged by, by name: as measured, or else as predicted."""
    for signals in (item.measured, item.predicted):
        if signals is not None and (found := figures(signals, direction)):
            return found
    return {}


def series(report: Record, direction: Direction) -> dict[str, dict[str, float]]:
    """Return by each initialisation's title the figures of the judged operations by name, in the graph's order."""
    names = judged_names(report.structure, direction)
    found = {
        item.title: {name: level for name, level in seen(item, direction).items() if name in names}
        for item in report.initialisations
    }
    return {title: levels for title, levels in found.items() if levels}


def before_after(report: Record) -> str:
    """Return the picture as SVG; ``""`` where there are no two ways to draw the weights, or the fault lies beside what
    they are judged by.
    """
    measure = report.judgement.measure
    if measure == "alike":
        found = {i.title: dict(i.differing.shares) for i in report.initialisations if i.differing is not None}
    else:
        found = series(report, measure)
    where = report.judgement.where
    names = list(next(iter(found.values()), {}))
    if len(found) < 2 or where not in names:
        return ""
    logs = {title: [_log(level) for level in levels.values()] for title, levels in found.items()}
    finite = [level for line in logs.values() for level in line if math.isfinite(level)]
    if not finite:
        return ""
    # A flat line should look flat: the scale spans two decades at least.
    middle = (min(finite) + max(finite)) / 2
    low, high = min(*finite, middle - 1), max(*finite, middle + 1)
    x = _x(names.index(where), len(names))
    parts = [
        f'<line class="fault" x1="{x}" x2="{x}" y1="{EDGE}" y2="{HEIGHT - EDGE}"/>',
        f'<line class="edge" x1="{LEFT}" x2="{LEFT}" y1="{EDGE}" y2="{HEIGHT - EDGE}"/>',
        f'<text x="{LEFT - 6}" y="{EDGE + 9}" text-anchor="end">{factor_text(10**high)}</text>',
        f'<text x="{LEFT - 6}" y="{HEIGHT - EDGE}" text-anchor="end">{factor_text(10**low)}</text>',
    ]
    for style, line in zip(("own", "plan"), logs.values(), strict=True):
        parts.append(f'<polyline class="{style}" points="{_points(line, low, high)}"/>')
    before, after = found
    caption = f'{_WORDS[measure]}: <span class="sign own">━</span> {before}, <span class="sign plan">━</span> {after}'
    return (
        f'<figure class="change"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_WORDS[measure]}, '
        f'before and after">{"".join(parts)}</svg><figcaption>{caption}</figcaption></figure>'
    )


def _log(level: float) -> float:
    """Return the decimal logarithm of a figure's root; −∞ for zero, and ∞ for NaN."""
    return math.log10(level) / 2 if 0 < level < math.inf else -math.inf if level == 0 else math.inf


def _x(place: int, count: int) -> str:
    return f"{LEFT + 8 + place * (WIDTH - LEFT - 16) / max(1, count - 1):.1f}"


def _points(line: Sequence[float], low: float, high: float) -> str:
    """Return the points of a line; what is zero lies on the lower edge, and what is not finite on the upper one."""
    room = HEIGHT - 2 * EDGE
    heights = (HEIGHT - EDGE - (min(max(level, low), high) - low) / (high - low) * room for level in line)
    return " ".join(f"{_x(place, len(line))},{y:.1f}" for place, y in enumerate(heights))
