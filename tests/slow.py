"""Which tests are slow, by the processor time that they are measured to take; `make quick` leaves them out."""

import os
from collections import defaultdict

SLOW = 0.5
"""Seconds of processor time, in the mean over the cases of a test, from which on it is marked slow."""
TOGETHER = 5.0
"""Seconds of all cases together from which on it is marked, too, but for `SPECIFIED`."""
SPECIFIED = ("tests/signals/test_rules.py", "tests/signals/test_adjoints.py")
"""What runs the specifications of operators, which `make quick` is to run."""
BUSY = 2.0
"""How many times as much a busy machine may count: a run names a test without the mark from there on."""
FAILED = 20 * SLOW
"""Seconds that fail a case without the mark."""


def spent():
    """Return the processor seconds of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def seconds_of(report):
    """Return the processor seconds of a case that is not marked slow, None of others."""
    return None if "slow" in report.keywords else dict(report.user_properties).get("processor_seconds")


def too_slow(report):
    """Whether a case should have been marked slow by far."""
    return (seconds_of(report) or 0.0) > FAILED


def is_slow(test, seconds):
    """Whether a test of these seconds of its cases should be marked."""
    together = sum(seconds)
    return together / len(seconds) > BUSY * SLOW or (together > BUSY * TOGETHER and not test.startswith(SPECIFIED))


def unmarked(reports):
    """Return the tests that should have been marked slow, with the seconds of each of their cases."""
    cases = defaultdict(list)
    for report in reports:
        if (seconds := seconds_of(report)) is not None:
            cases[report.nodeid.partition("[")[0]].append(seconds)
    return {test: seconds for test, seconds in cases.items() if is_slow(test, seconds)}
