"""Lines of small bars for terminals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(levels: Sequence[float], low: float, high: float, width: int) -> str:
    """Return ``levels`` as one line of at most ``width`` bars on the scale from ``low`` to ``high``.

    Where there are more levels than bars, each bar shows the level of its run that lies farthest from the middle of
    the scale, so that no outlier is averaged away. Levels that are not finite are drawn as a cross.
    """
    if not levels:
        return ""
    middle = (low + high) / 2
    bars = []
    count = min(width, len(levels))
    for bar in range(count):
        run = levels[bar * len(levels) // count : (bar + 1) * len(levels) // count]
        level = max(run, key=lambda value: abs(value - middle) if math.isfinite(value) else math.inf)
        if not math.isfinite(level):
            bars.append("×")
            continue
        share = (level - low) / (high - low) if high > low else 0.5
        bars.append(_BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))])
    return "".join(bars)


def depth_lines(series: Mapping[str, Sequence[float]], width: int) -> list[str]:
    """Return one labelled sparkline of second moments per entry, on one logarithmic scale, within ``width`` columns.

    Signals that are zero everywhere (zero-initialised gates and readouts) have no place on it and are left out.
    """
    levels = {
        label: [math.log2(moment) if math.isfinite(moment) else math.nan for moment in moments if moment != 0]
        for label, moments in series.items()
    }
    finite = [level for line in levels.values() for level in line if math.isfinite(level)]
    # A flat line should look flat: the scale spans two octaves at least.
    middle = (min(finite) + max(finite)) / 2 if finite else 0.0
    low, high = min([*finite, middle - 1]), max([*finite, middle + 1])
    label_width = max(len(label) for label in levels)
    room = max(8, min(64, width - label_width - 26))
    lines = []
    for label, line in levels.items():
        known = [level for level in line if math.isfinite(level)]
        span = f"{2 ** min(known):.2g} to {2 ** max(known):.2g}" if known else "none finite"
        lines.append(f"{label:<{label_width}}  {sparkline(line, low, high, room)}  {span}")
    return lines
