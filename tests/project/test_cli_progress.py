"""Progress: what a terminal is shown while a command runs, and that nothing of it goes anywhere else."""

import os
import re
import subprocess
import sys
import time

import pytest

from wellposed.limit import OutOfTime, until, walked, watched

NET = """
import torch
from torch import nn


def build():
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]), (torch.zeros(2, 4),)
"""


def told_of(loop):
    """Return what is told of the loops of a function."""
    told = []
    with watched(lambda done, total: told.append((done, total))):
        loop()
    return told


def test_a_loop_tells_how_far_it_is_before_each_step_and_at_the_end():
    assert told_of(lambda: list(walked("abc"))) == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_of_loops_in_loops_the_outermost_is_told_of():
    def loop():
        for _ in walked("ab"):
            list(walked("abc"))
        list(walked("a"))

    assert told_of(loop) == [(0, 2), (1, 2), (2, 2), (0, 1), (1, 1)]


def test_a_loop_after_one_that_failed_is_told_of():
    def loop():
        with pytest.raises(ZeroDivisionError):
            [1 / number for number in walked([0])]
        list(walked("a"))

    assert told_of(loop)[-2:] == [(0, 1), (1, 1)]


def test_a_loop_ends_with_the_time_that_it_was_given():
    with until(time.process_time() - 1.0), pytest.raises(OutOfTime):
        next(walked("a"))


def ran(argv, terminal):
    """Return what a command writes to standard error, which is a terminal or a pipe; standard output is a pipe."""
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "wellposed", *argv]
    if not terminal:
        return subprocess.run(command, capture_output=True, env=environment, text=True, check=True).stderr
    pty = pytest.importorskip("pty", reason="a terminal of Unix")
    master, slave = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave, env=environment) as process:
        os.close(slave)
        written = b""
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # on Linux the end of a terminal
                break
            if not part:
                break
            written += part
        os.close(master)
        assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(NET)
    return f"{path}:build"


@pytest.mark.slow
def test_a_terminal_is_shown_stages_from_the_first_moment_on(net):
    written = ran(["check", net], terminal=True)
    assert 0 < written.index("starting") < written.index("planning") < written.index("measuring")


@pytest.mark.slow
def test_a_terminal_is_shown_how_long_a_report_takes_at_most(net):
    assert "of at most 30 s" in ran(["report", net], terminal=True)


@pytest.mark.slow
def test_a_pipe_is_shown_nothing(net):
    assert ran(["check", net], terminal=False) == ""


def test_a_long_loop_shows_the_time_that_is_left(monkeypatch):
    from rich.console import Console

    from wellposed.cli import progress

    clock = [0.0]
    monkeypatch.setattr(progress.streams, "err", lambda: Console(force_terminal=True, stderr=True, quiet=True))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    with progress.Stages("measuring") as stages:
        stages.next()
        for done in walked(range(8)):
            clock[0] += 3.0
            if done == 2:
                assert stages._progress.tasks[0].fields["loop"] == "2 of 8, 0:00:18 left"
        assert stages._progress.tasks[0].fields["loop"] == ""
