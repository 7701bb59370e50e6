"""What every test shares: seeded random numbers, one thread per worker, and the measurement of what is slow."""

import gc
import os
import random
import signal

# JAX compiles every small function of a test anew, and runs it a few times: its optimisations cost more than they give.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import hypothesis
import numpy as np
import pytest
import torch
from tests.slow import FAILED, spent, too_many, too_slow, unmarked

from wellposed.collection import SELDOM
from wellposed.measuring import rehearsal
from wellposed.signals.passes import application

application.FALLS_BACK = rehearsal.FALLS_BACK = False  # a rule or a rehearsal that fails is seen to fail

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# Shells start what runs in the background without Ctrl-C, which some tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run: a failure on one machine is a failure on all.
hypothesis.settings.register_profile("wellposed", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("wellposed")


@pytest.fixture(autouse=True)
def _seeded():
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - libraries under test draw from the global generator
    torch.manual_seed(0)


OF_RULES = ("checks", "operators", "signals", "structure", "zoo")
"""Folders whose tests see what rules say, and not what real passes correct of it."""


@pytest.fixture(autouse=True)
def _rules_alone(request, monkeypatch):
    """Leave out the rehearsal of plans in tests of rules, which would hide that one of them is wrong."""
    if request.path.parent.name in OF_RULES:
        monkeypatch.setattr("wellposed.methods.rehearsing.is_worth_it", lambda graph, plan: False)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from what collection makes: modules and cases that live as long as the session.

    It would walk through all of them again and again, which takes a quarter of a collection, and time in every test.
    Tests make few cycles, and run beside libraries of a million objects: garbage is collected seldom.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
        gc.set_threshold(*SELDOM)


@pytest.fixture(autouse=True, scope="module")
def _old_objects_are_left_alone():
    """Keep the garbage collector, and searches among its objects, from what the modules before have imported and made.

    A process that has run many of them holds a million more objects, through which every search would go.
    """
    gc.collect()
    gc.freeze()


STARTED = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[STARTED] = spent()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    finally:
        item.user_properties.append(("processor_seconds", spent() - item.stash[STARTED]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    if report.when == "call" and report.passed and too_slow(report):
        report.outcome = "failed"
        report.longrepr = f"takes more than {FAILED:.0f} s of processor time: mark it slow, or make it faster"
    return report


def pytest_terminal_summary(terminalreporter):
    passed = terminalreporter.getreports("passed")
    if together := too_many(passed):
        terminalreporter.write_line(f"make quick takes {together:.0f} s of processor time: mark more tests slow")
    for test, seconds in unmarked(passed).items():
        took = f"{sum(seconds):.1f} s of processor time in {len(seconds)} cases"
        terminalreporter.write_line(f"{test} takes {took}, and is not marked slow")
