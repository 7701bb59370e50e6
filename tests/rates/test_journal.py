"""The journal of a search: what a kill leaves behind is used again, and nothing else is taken for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wellposed.errors import RateError
from wellposed.rates import running
from wellposed.rates.ensemble import Member, Outcome
from wellposed.rates.find import find_max_lr
from wellposed.rates.journal import Journal

GRID = (0.03, 0.1, 0.3, 1.0)


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return (model(batch) - batch.sum(dim=1, keepdim=True)).square().mean()


def data() -> list[Tensor]:
    return list(torch.randn(6, 10, 3, generator=torch.Generator().manual_seed(0)))


def search(journal: Path | None, **options: Any) -> Any:
    given = {"grid": GRID, "seeds": 2, "progress": False, "vectorize": False, "widen": 0, "journal": journal}
    return find_max_lr(lambda: nn.Linear(3, 1), loss_fn, data(), **{**given, **options})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Member]:
    """The runs that are trained from here on."""
    members: list[Member] = []
    train = running.train

    def counting(runs: Any, part: Any, *args: Any, **kwargs: Any) -> Any:
        members.extend(part)
        return train(runs, part, *args, **kwargs)

    monkeypatch.setattr("wellposed.rates.search.train", counting)
    return members


KILLED = """
import sys, time
sys.path[:0] = {path!r}
from test_journal import loss_fn, search
from pathlib import Path

def slow(model, batch):
    time.sleep(0.01)
    return loss_fn(model, batch)

slow.__qualname__ = loss_fn.__qualname__
import test_journal
test_journal.loss_fn = slow
search(Path(sys.argv[1]), grid=(0.03, 0.1, 0.3, 1.0), seeds=2)
"""


@pytest.mark.slow
def test_a_search_goes_on_after_a_kill(tmp_path: Path, trained: list[Member]) -> None:
    path = tmp_path / "journal.jsonl"
    code = KILLED.format(path=[str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")])
    worker = subprocess.Popen([sys.executable, "-c", code, str(path)])
    deadline = time.monotonic() + 100
    while not path.exists() or path.read_bytes().count(b"\n") < 4:
        assert worker.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    left = path.read_bytes()
    whole = search(None)
    assert len(trained) == 8
    trained.clear()
    assert search(path) == whole
    assert 0 < len(trained) == 8 - (left.count(b"\n") - 1) < 6
    assert path.read_bytes().startswith(left[: left.rfind(b"\n") + 1])
    trained.clear()
    assert search(path) == whole
    assert not trained


def test_every_seed_is_noted_when_it_is_done(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    lines: list[int] = []

    def watching(model: nn.Module, batch: Tensor) -> Tensor:
        lines.append(path.read_text().count("\n") if path.exists() else 0)
        return loss_fn(model, batch.double())

    def found(journal: Path | None) -> list[tuple[float | None, ...]]:
        grid = {"grid": GRID[:3], "seeds": 3, "widen": 0, "progress": False, "vectorize": True}
        rate = find_max_lr(lambda: nn.Linear(3, 1).double(), watching, data(), journal=journal, **grid)
        return [point.losses for point in rate.curve]

    noted = found(path)
    assert set(lines) == {0, 1, 4, 7}
    assert noted == [pytest.approx(losses, rel=1e-10) for losses in found(None)]


def test_finished_runs_serve_larger_searches(tmp_path: Path, trained: list[Member]) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    search(path)
    trained.clear()
    larger = search(path, seeds=3, grid=(*GRID, 2.0))
    assert {(m.rate, m.seed) for m in trained} == {(2.0, 0), (2.0, 1), *((rate, 2) for rate in (*GRID, 2.0))}
    assert larger == search(None, seeds=3, grid=(*GRID, 2.0))


def test_a_line_that_was_cut_off_is_dropped(tmp_path: Path, trained: list[Member]) -> None:
    path = tmp_path / "journal.jsonl"
    whole = search(path)
    path.write_bytes(path.read_bytes()[:-7])
    trained.clear()
    assert search(path) == whole
    assert len(trained) == 1
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 5}, "steps was 6 and is 5"),
        ({"optimizer": "momentum"}, "optimizer was .*'momentum': 0.* and is .*'momentum': 0.9"),
        ({"seed": 1}, "first batch was .*; weights was"),
        ({"schedule": "cosine"}, "schedule was 'warmup_linear' and is 'cosine'"),
        ({"bound": 7.0}, "bound was 100.0 and is 7.0"),
        ({"probes": 2}, "probes was 16 and is 2"),
    ],
)
def test_the_journal_of_another_search_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    path = tmp_path / "journal.jsonl"
    search(path)
    before = path.read_bytes()
    with pytest.raises(RateError, match=f"is the journal of another search: {message}"):
        search(path, **options)
    assert path.read_bytes() == before


def test_other_batches_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path)
    with pytest.raises(RateError, match="first batch was"):
        find_max_lr(lambda: nn.Linear(3, 1), loss_fn, data()[1:] + data()[:1], seeds=2, progress=False, journal=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"rate: 0.1\n", "line 1: not JSON"),
        (b"[1, 2]\n", "line 1: no JSON object"),
        (b'{"kind": "wellposed.plan"}\n', "is no journal of a search"),
        (b'{"kind": "wellposed.rates", "version": 2}\n', "is no journal of a search"),
        (b'{"kind": "wellposed.rates", "version": 1, "settings": {"a": 1}}\n{"rate": 1.0}\n', "line 2: no run"),
        (b'{"kind": "wellposed.rates", "version": 1, "settings": {"a": 1}}\n{"rate', None),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str | None) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(content)
    if message is None:
        assert Journal(path, {"a": 1}).outcomes == {}
    else:
        with pytest.raises(RateError, match=message):
            Journal(path, {"a": 1})


def test_outcomes_come_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    outcomes = [Outcome(0.1 + 0.2, 3, 1 / 3, 2 / 7), Outcome(1e-9, 0, 5.0, None)]
    Journal(path, {"a": [1, 2]}).add(outcomes)
    assert list(Journal(path, {"a": (1, 2)}).outcomes.values()) == outcomes  # type: ignore[dict-item]


@pytest.mark.parametrize(("path", "told"), [("/dev/zero", "without an end"), ("a\0b", "holds no NUL")])
def test_a_journal_that_cannot_be_read_is_refused(path: str, told: str) -> None:
    with pytest.raises(RateError, match=told):
        search(Path(path))
