"""Which tests are slow, by the processor time that they are measured to take; `make quick` leaves them out."""

import os
from collections import defaultdict
from pathlib import Path

SLOW = 0.2
"""Seconds of processor time, in the mean over the cases of a test, from which on it is marked slow."""
TOGETHER = 2.0
"""Seconds of all cases together from which on it is marked, too, but for `SPECIFIED`."""
SPECIFIED = ("tests/signals/test_rules.py", "tests/signals/test_adjoints.py", "tests/operators/test_facts.py")
"""What runs the specifications of operators: `make quick` is to run one case of each (`specs.by_operator`)."""
TWO_MINUTES = 200.0
"""Seconds that all tests without the mark may take: two minutes on two cores, with what starts them."""
BUSY = 2.0
"""How many times as much a busy machine may count: a run names a test without the mark from there on."""
FAILED = 50 * SLOW
"""Seconds that fail a case without the mark."""


def spent():
    """Return the processor seconds of this process and of its children, those that live still among them."""
    times = os.times()
    waited_for = times.user + times.system + times.children_user + times.children_system
    return waited_for + sum(map(_seconds, _children(os.getpid(), os.getpid())))


def _seconds(pid):
    """Return the processor seconds of a living process and of its children; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0.0
    children = {child for thread in threads for child in _children(pid, thread)}
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(_seconds, children))


def _children(pid, thread):
    """Return the processes that a thread has started and that live."""
    try:
        return Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
    except OSError:
        return []


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


def too_many(reports):
    """Return the seconds of all cases without the mark where they take too long together, else 0."""
    together = sum(seconds_of(report) or 0.0 for report in reports)
    return together if together > TWO_MINUTES else 0.0


def unmarked(reports):
    """Return the tests that should have been marked slow, with the seconds of each of their cases."""
    cases = defaultdict(list)
    for report in reports:
        if (seconds := seconds_of(report)) is not None:
            cases[report.nodeid.partition("[")[0]].append(seconds)
    return {test: seconds for test, seconds in cases.items() if is_slow(test, seconds)}
