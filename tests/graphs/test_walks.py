"""Walks, which go everywhere once."""

from __future__ import annotations

import pytest

from wellposed.walks import reached

LEADS = {"a": "bc", "b": "d", "c": "d", "d": "a"}


def test_what_several_ways_lead_to_is_reached_once():
    assert sorted(reached("a", LEADS.__getitem__)) == ["a", "b", "c", "d"]


def test_a_walk_goes_no_further_than_its_reader():
    def further(one: str) -> str:
        if one == "d":
            pytest.fail("asked what d leads to")
        return LEADS[one]

    assert "d" in reached("a", further)
