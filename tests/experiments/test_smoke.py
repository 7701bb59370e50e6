"""Every experiment runs from its command to its figure and its sentence, on drawn images."""

import math
from pathlib import Path

import pytest
import torch
from experiments.figures import blank
from experiments.papers import judged, page
from experiments.registry import experiments, find
from experiments.settings import from_plain

from experiments import engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _without_onednn(monkeypatch):
    """On some processors oneDNN's backward convolutions of the smallest nets (A4) write outside their memory."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.slow
@pytest.mark.parametrize("name", experiments())
def test_every_experiment_runs_at_its_smallest_scale(name, tmp_path):
    result = engine.run(name, "smoke", journals=tmp_path, say=lambda text: None)
    assert len(result.rows) == len(list(find(name).units(from_plain(result.settings))))
    judgement = judged(result)
    assert judgement.ours
    assert judgement.sentence.endswith(".")
    assert "nan" not in judgement.ours
    figure = blank()
    find(name).draw(from_plain(result.settings), result.rows, figure)
    assert figure.axes
    figure.draw_without_rendering()  # it lays out all that is drawn
    for legend in filter(None, [*figure.legends, *(panel.get_legend() for panel in figure.axes)]):
        assert all(figure.bbox.contains(*corner) for corner in legend.get_window_extent().corners())


@pytest.mark.slow
def test_the_page_is_what_the_results_give():
    # after a change of results or of an experiment's words: python -m experiments figures; python -m experiments papers
    assert (ROOT / "docs/papers.md").read_text() == page(figures=ROOT / "docs/figures")


def test_the_same_unit_gives_the_same_row(tmp_path):
    rows = [engine.run("A1", "smoke", journals=tmp_path / part, say=lambda text: None).rows for part in ("a", "b")]
    assert rows[0] == rows[1]
    assert all(math.isfinite(float(row["loss"])) for row in rows[0])


def test_ray_gives_the_rows_that_the_local_engine_gives(tmp_path):
    ray = pytest.importorskip("ray")
    local = engine.run("A3", "smoke", journals=tmp_path / "local", say=lambda text: None)
    try:
        spread = engine.run("A3", "smoke", engine="ray", journals=tmp_path / "ray", say=lambda text: None)
    finally:
        ray.shutdown()
    assert spread.rows == local.rows
