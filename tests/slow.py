"""Which tests are slow, by the processor time that they are measured to take; `make quick` leaves them out."""

import os
from collections import defaultdict

SLOW = 0.5
"""Seconds of processor time, in the mean over the cases of a test, from which on it is marked slow."""
NAMED = 2 * SLOW
"""Seconds from which on a run names a test without the mark: a busy machine counts more than an idle one."""
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


def unmarked(reports):
    """Return the tests that should have been marked slow, with the seconds of their cases in the mean."""
    cases = defaultdict(list)
    for report in reports:
        if (seconds := seconds_of(report)) is not None:
            cases[report.nodeid.partition("[")[0]].append(seconds)
    means = {test: sum(seconds) / len(seconds) for test, seconds in cases.items()}
    return {test: mean for test, mean in means.items() if mean > NAMED}
