"""The figures, drawn from the results by each experiment's own ``draw``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from experiments.papers import best
from experiments.registry import experiments
from experiments.results import FOLDER, found
from experiments.settings import from_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def blank() -> Figure:
    """Return an empty figure of the pages' size, on a canvas that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_all(out: Path, folder: Path = FOLDER) -> Iterator[Path]:
    """Draw a figure for each experiment that has a result beyond smoke; yields the files."""
    results = found(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name, experiment in experiments().items():
        result = best(results, name)
        if result is None:
            continue
        figure = blank()
        experiment.draw(from_plain(result.settings), result.rows, figure)
        figure.suptitle(fill(f"{name}: {experiment.title} ({result.scale})", 90), fontsize=10)
        path = out / f"{name.lower()}.png"
        figure.savefig(path, dpi=150, metadata={"Software": None})
        yield path
