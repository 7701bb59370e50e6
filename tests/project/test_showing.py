"""Results show themselves in few lines, as they are: no markup, nothing that a terminal would obey."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.reports.nets import plotly
from torch import nn

import wellposed as wp
from wellposed.cli import show
from wellposed.errors import PlanError, WellposedError
from wellposed.gradients import lsuv
from wellposed.plans import Plan, groups_table
from wellposed.showing import ROWS, visible

LONG = 2_000
"""Characters that no result exceeds: ten rows, however large the model."""
HOSTILE = "[bold]a[/]\x1b[31m\x07<b>\u202e[/nonsense]"


@pytest.fixture(scope="module")
def deep() -> dict[str, object]:
    model = nn.Sequential(*(layer for _ in range(40) for layer in (nn.Linear(4, 4), nn.Tanh())))
    x = torch.randn(8, 4)
    graph = wp.trace(model, x)
    verdict = wp.check(graph, draws=2)
    report = wp.report(graph, draws=2)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    def chain() -> nn.Module:
        return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(4, 4), nn.Tanh())))

    return {
        "relative": wp.rates.relative(graph, rule="ntk", per_layer=True),
        "rate": wp.rates.find_max_lr(chain, loss, [x], seeds=1, schedule="constant", progress=False),
        "agreement": wp.gradients.gradcosine(model, loss, x, by="parameter"),
        "structure": report.structure,
        "initialisation": report.initialisations[0],
        "spectrum": wp.checks.jacobian_spectrum(graph, draws=1),
        "contest": wp.compare_starts(chain, loss, [x], ("own", "kaiming"), seeds=2, schedule="constant"),
        "coordinates": wp.rates.coordinate_check(
            lambda size: model, (1, 2), loss, x, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), seeds=1
        ),
        "graph": graph,
        "plan": wp.plan(graph),
        "signals": wp.propagate(graph, backward=True),
        "verdict": verdict,
        "comparison": verdict.comparisons[0],
        "explanation": wp.explain(model, "78", x),
    }


KINDS = ["graph", "plan", "signals", "verdict", "relative", "rate", "agreement", "coordinates"]
SHORT = ["comparison", "explanation", "structure", "initialisation", "spectrum", "contest"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS + SHORT)
def test_a_line_and_the_rows_that_matter(deep: dict[str, object], kind: str) -> None:
    text, page = repr(deep[kind]), deep[kind]._repr_html_()
    assert len(text) < LONG
    assert len(page) < 2 * LONG
    first, *rows = text.splitlines()
    assert len(rows) <= ROWS + 2
    assert page.count("<tr>") <= ROWS + 1
    if kind in KINDS:
        assert len(rows) == ROWS + 2
        assert re.search(r"… \d+ more \(.* are shown\)$", rows[-1])
        assert page.count("<tr>") == ROWS + 1
    assert first


@pytest.mark.slow
def test_the_rows_are_those_that_matter(deep: dict[str, object]) -> None:
    verdict, signals = deep["verdict"], deep["signals"]
    worst = {c.name for c in sorted(verdict.comparisons, key=lambda c: -c.excess)[:ROWS]}
    assert {line.split()[0] for line in repr(verdict).splitlines()[2:-1]} == worst
    quietest = {s.name for s in sorted(signals, key=lambda s: s.second_moment)[:ROWS]}
    assert {line.split()[0] for line in repr(signals).splitlines()[2:-1]} == quietest


@pytest.mark.slow
def test_answers_say_what_they_are(deep: dict[str, object]) -> None:
    said = {kind: repr(deep[kind]).splitlines()[0] for kind in deep}
    assert re.match(r"Relative rate \S+ by rule ntk: NTK\^-0.5", said["relative"])
    assert re.match(r"Learning rate \S+; plateau \S+ to \S+ \(unsafe\): \d+ learning rates from", said["rate"])
    assert said["agreement"].startswith("Gradients of 2 sub-batches: GradCosine ")
    assert re.match(r"Structure of 80 operations in \d+ groups, on 1 branches that meet at 0$", said["structure"])
    assert re.match(
        r"Signals under current weights: predicted and measured, \d+ compared, \d+ off$", said["initialisation"]
    )
    assert re.match(r"Spectrum of \d+ Jacobians of 4 outputs and 4 inputs: singular values from", said["spectrum"])
    assert said["contest"] == "2 seeds, 1 steps each, every start at its own best rate"


def test_a_report_shows_its_sentence() -> None:
    report = wp.report(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(8, 4))
    assert repr(report) == f"Report of Sequential: {report.judgement.sentence}"


@pytest.mark.parametrize("text", ["plain", "größer × 3", "two\nlines", "日本語"])
def test_text_for_people_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert visible("\x1b[2Ja\rb\x9bc\u202ed\u2028e") == r"\x1b[2Ja\rb\x9bc\u202ed\u2028e"


def hostile_model() -> nn.Module:
    inside = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Module()
    model.add_module(HOSTILE.replace(".", ""), inside)
    model.forward = lambda x: inside(x)
    model.__class__ = type(HOSTILE, (nn.Module,), {})
    return model


def printed(item: object) -> str:
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=200, color_system="standard").print(item)
    return stream.getvalue()


def test_names_of_others_are_shown_and_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = hostile_model(), torch.randn(4, 4)
    plan, verdict = wp.plan(model, x), wp.check(model, x)
    groups = plan.param_groups(model, lr=0.1)
    texts = [repr(item) for item in (wp.trace(model, x), plan, wp.propagate(wp.trace(model, x)), verdict)]
    texts += [str(verdict), str(wp.explain(model, wp.trace(model, x).nodes[0].name, x))]
    texts += [printed(item) for item in (plan.table(), verdict.table(), groups_table(groups))]
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    show.plan(plan, wp.trace(model, x), every=True)
    show.verdict(verdict)
    texts.append(stream.getvalue())
    for text in texts:
        assert "\\x1b[31m" in text.replace("\n", "")
        assert not set("\x07\u202e") & set(text)
        assert "\x1b[31m" not in text
        assert "[bold]a[/]" in text
    assert "<b>" not in plan._repr_html_()
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


class Odd(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, nn.Linear(4, 3))
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, last = self.children()
        return last(first(x))


HIDDEN = {"\x1b", "\u202e", "\x9b", "\u2028", "\ud800"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HIDDEN))
def test_nothing_of_a_models_names_is_obeyed_in_errors_verdicts_and_pages(tmp_path: Path, name: str) -> None:
    model, x = Odd(name), torch.randn(4, 4)
    report = wp.report(model, x, draws=2)
    report.to_html(tmp_path / "page.html")
    shown = [(tmp_path / "page.html").read_text(), report._repr_html_(), wp.check(model, x, draws=2).summary()]
    shown.append(wp.explain(model, name, x, draws=2).summary())
    for call in (
        lambda: wp.trace(model, torch.randn(4, 5)),
        lambda: wp.explain(model, "nosuch", x),
        lambda: lsuv(model, lambda m, b: m(b).sum(), [x * float("nan")]),
    ):
        with pytest.raises(WellposedError) as caught:
            call()
        shown.append(str(caught.value))
    own = {c for c in plotly() if c in HIDDEN}  # the library that draws the charts holds some itself
    assert [HIDDEN.intersection(text) - own for text in shown] == [set()] * len(shown)


def test_a_plan_with_a_half_of_a_character_is_written_but_not_saved(tmp_path: Path) -> None:
    model, x = Odd("\ud800"), torch.randn(4, 4)
    plan = wp.initialize_(model, x)
    with pytest.raises(PlanError, match=r"the plan of Odd holds text that no file can: .*surrogates not allowed"):
        plan.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []
