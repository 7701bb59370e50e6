"""The report in a terminal: sparklines, the worst operations, 80 columns."""

import io
import math

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console
from tests.reports.nets import mlp
from torch import nn

import wellposed as wp
from wellposed.reports.sparkline import depth_lines, sparkline
from wellposed.reports.terminal import worst_operations


def printed(report, columns=80):
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(report.table())
    return console.export_text()


def test_sparkline_follows_the_levels():
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 0.0, 7.0, 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, math.nan, math.inf], 0.0, 2.0, 3) == "▅××"
    assert sparkline([], 0.0, 1.0, 8) == ""


def test_sparkline_keeps_the_outlier_of_a_run():
    line = sparkline([0.0] * 50 + [8.0] + [0.0] * 49, -8.0, 8.0, 10)
    assert len(line) == 10
    assert line.count("█") == 1


def test_depth_lines_share_one_scale_and_fit():
    steady, growing = [1.0] * 40, [2.0**level for level in range(40)]
    lines = depth_lines({"planned": steady, "own init": [0.0, *growing]}, 60)
    assert len(lines) == 2
    assert all(cell_len(line) <= 60 for line in lines)
    assert set(lines[0].split()[1]) == {"▁"}
    assert lines[1].split()[2][0] == "▁"
    assert lines[1].split()[2][-1] == "█"
    assert lines[1].endswith("1 to 5.5e+11")


@pytest.mark.slow
def test_it_fits_eighty_columns_and_shows_both_ways_before_and_after():
    model, example = mlp(8)
    shown = printed(wp.report(model, example, draws=2))
    lines = shown.splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    bars = [line for line in lines if set(line) & set("▁▂▃▄▅▆▇█")]
    assert [line.split("  ")[0].strip() for line in bars] == ["current weights", "plan", "current weights", "plan"]
    assert "! Doubtful: " in shown
    assert "relative rate" in shown


@pytest.mark.slow
def test_the_ten_worst_are_the_ten_worst():
    model, example = mlp(20)
    report = wp.report(model, example, draws=2)
    worst = worst_operations(report, 10)
    own = report.initialisations[0].measured
    linear = [f"{i}" for i in range(0, 41, 2)]
    norms = {
        name: own[name].second_moment * own.gradients[name].second_moment * math.prod(own[name].shape) ** 2
        for name in linear
    }
    middle = sorted(norms.values())[len(norms) // 2]
    octaves = {
        name: max(abs(math.log2(own[name].second_moment)), abs(math.log2(norms[name] / middle))) for name in linear
    }
    assert worst == sorted(linear, key=lambda name: -octaves[name])[:10]
    shown = printed(report)
    for name in worst:
        assert any(line.startswith(f"{name} ") for line in shown.splitlines())


@pytest.mark.slow
def test_odd_numbers_come_first():
    model, example = mlp(12)
    with torch.no_grad():
        model[24].weight.fill_(float("nan"))  # the last one: nothing before it has a signal or a gradient of its own
    report = wp.report(model, example, draws=2)
    shown = printed(report)
    assert "nan" in shown
    assert "×" in shown
    assert "24" in worst_operations(report, 13)


@pytest.mark.slow
def test_zeros_that_stand_for_a_readout_are_no_fault():
    model, example = mlp(12)
    wp.initialize_(model, example)
    with torch.no_grad():
        model[24].weight.zero_()
        model[24].bias.zero_()
    report = wp.report(model, example, draws=0)
    forward = report.initialisations[0].predicted
    assert forward["24"].second_moment == 0.0
    assert worst_operations(report, 13)[0] != "24"


@pytest.mark.parametrize("columns", [80, 120])
def test_long_names_fold(columns):
    model = nn.Sequential()
    model.add_module("a_module_with_a_name_" * 6, nn.Linear(8, 8))
    shown = printed(wp.report(model, torch.randn(8, 8), draws=2), columns)
    assert max(cell_len(line) for line in shown.splitlines()) <= columns


def test_a_failure_and_the_notes_are_told():
    class Dies(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(4, 4)

        def forward(self, x):
            raise ValueError(f"nothing for {self.first(x).shape}")

    shown = printed(wp.report(Dies(), torch.randn(2, 4), draws=0))
    assert "the model's forward fails" in shown
    assert "nothing for" in shown
    assert "Nothing was compared with real passes" in shown
