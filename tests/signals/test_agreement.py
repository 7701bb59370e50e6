"""States whose parts disagree are found, each kind by the check that is for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wellposed.signals.distributions.agreement import CHECKS, disagreement
from wellposed.signals.distributions.functions import IDENTITY
from wellposed.signals.distributions.lazy import Lazy, LocalScales
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import Blocks, Filters, Link, Masked, Scaled, State, Statistic
from wellposed.signals.integration.taps import picks
from wellposed.signals.integration.transport import of_log_normal

WHOLE = make_state((4, 6), roots=2)
PART = make_state((4, 3), roots=2)
ONES = np.ones((2, 2, 2))


def statistic(over: int, places: tuple[int | None, ...]) -> Statistic:
    return Statistic(WHOLE, frozenset([over]), ((IDENTITY, PART),), lambda mean: mean, places)


def linked(dims: tuple[int | None, ...], **fields: object) -> State:
    return make_state((4, 6), roots=2).amended(links=(Link(WHOLE, Scaled(1.0), dims, **fields),))


EARLIER = make_state((4, 6), roots=2)
AGREEING = {
    "no links": WHOLE,
    "a link": linked((0, 1)),
    "a link to a part": PART.changed(links=(Link(WHOLE, Scaled(1.0), taps=((1, picks(np.arange(3), 6)),)),)),
    "a statistic": make_state((4,), roots=2).amended(origin=statistic(1, (0,))),
    "blocks": WHOLE.amended(blocks=Blocks((PART, PART), 1)),
    "a mask": WHOLE.amended(attention=Masked(torch.ones(6, dtype=torch.bool), WHOLE)),
    "pairs": make_state((12,)).changed(corr=np.eye(12).ravel()),
    "an atom of length 1 in no axis": make_state((4,)).amended(
        lengths=(4, 1), axes=((0,),), mean=np.zeros((1, 1)), var=np.ones((1, 1)), corr=np.ones((1, 1))
    ),
}
DISAGREEING = {
    "every atom longer than 1": [
        WHOLE.amended(axes=((0,), (1, 2))),
        WHOLE.amended(axes=((0,), (0,))),
        WHOLE.amended(axes=((0,), ())),
    ],
    "mean and variance have one": [WHOLE.amended(mean=np.zeros((4, 3))), WHOLE.amended(var=np.ones(4))],
    "kernels have one dimension": [
        WHOLE.amended(corr=np.ones((1, 7))),
        WHOLE.amended(corr=np.ones(1)),
        WHOLE.amended(local_scales=LocalScales.of(np.ones((1, 7)))),
        WHOLE.amended(filters=Filters(inverse_dims=Lazy.of(ONES))),
        WHOLE.amended(filters=Filters(channel_norm_correction=Lazy.of(ONES))),
    ],
    "a position has the correlation 1": [WHOLE.amended(corr=np.full((2, 1), 0.5))],
    "what is Gaussian has no": [WHOLE.amended(gauss=True, transport=of_log_normal(0.5))],
    "links lead to earlier": [
        EARLIER.amended(links=(Link(linked((0, 1)), Scaled(1.0)),)),
        linked((0, 2)),
        linked((0,)),
        linked((1, 0)),
        linked((0, 1), taps=((1, picks(np.arange(3), 6)),)),
        linked((0, 1), taps=((1, picks(np.arange(6), 5)),)),
    ],
    "a statistic names": [
        make_state((4,)).amended(origin=of)
        for of in (statistic(2, (0,)), statistic(1, (1,)), statistic(0, (1,)), statistic(1, (0, None)))
    ],
    "a mask broadcasts": [
        WHOLE.amended(attention=Masked(torch.ones(5, dtype=torch.bool))),
        WHOLE.amended(attention=Masked(torch.ones(1, 4, 6, dtype=torch.bool))),
        WHOLE.amended(attention=Masked(torch.ones(6, dtype=torch.bool), PART)),
    ],
    "a margin is by position": [
        WHOLE.amended(filters=Filters(margin=Lazy.of(np.ones((4, 5))))),
        WHOLE.amended(filters=Filters(margin=Lazy.of(np.ones(6)))),
    ],
    "only what depends": [make_state((4, 6)).amended(links=(Link(WHOLE, Scaled(1.0), (0, 1)),))],
    "blocks make up": [
        WHOLE.amended(blocks=Blocks((PART,), 1)),
        WHOLE.amended(blocks=Blocks((PART, PART), 0)),
        WHOLE.amended(blocks=Blocks((PART, PART), 2)),
    ],
}


@pytest.mark.parametrize("state", AGREEING.values(), ids=AGREEING)
def test_parts_that_agree_pass_every_check(state):
    assert disagreement(state) is None


@pytest.mark.parametrize(("said", "state"), [(said, state) for said, states in DISAGREEING.items() for state in states])
def test_a_disagreement_is_found_by_the_check_that_is_for_it(said, state):
    assert (disagreement(state) or "").startswith(said)


def test_every_check_is_seen_to_fail():
    assert len(CHECKS) == len(DISAGREEING)
    assert all(any(said.startswith(start) for start in DISAGREEING) for said, _ in CHECKS)
