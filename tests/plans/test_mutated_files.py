"""Plan files that were damaged, or written to do harm: errors of ours, and nothing written to the model."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import wellposed as wp
from wellposed.errors import PlanFileError, WellposedError
from wellposed.plans import Plan

SETTINGS = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([10**400, -(10**30), 2**63, 0, -1]),
    st.floats(),
    st.sampled_from([math.inf, -math.inf, math.nan, 1e300, 1e39, -1e39, 5e-324, -0.0]),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["\x1b[31m", "0.weight", ""])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(["name", "std", "shape", "x"]), inner, max_size=4)
    ),
    max_leaves=6,
)


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    net.append(nn.Linear(3, 3))
    net[5].weight = nn.Parameter(net[5].weight.detach().clone())
    net.register_parameter("alias", net[4].weight)
    return net


def documents() -> list[dict[str, Any]]:
    x = torch.randn(2, 2, 4, 4)
    plans = [
        wp.plan(model(), x, **options)
        for options in ({}, {"center": True}, {"method": "orthogonal"}, {"method": "mup"})
    ]
    return [json.loads(plan.model_dump_json()) for plan in plans]


DOCUMENTS = documents()


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def changed(tree: Any, path: tuple[Any, ...], value: Any, delete: bool) -> Any:
    if not path:
        return value
    copy = tree.copy()
    if len(path) == 1 and delete:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], value, delete)
    return copy


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid file with one to three places changed, or with its text damaged."""
    document: Any = draw(st.sampled_from(DOCUMENTS))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(document)))
        borrowed = st.just(at(document, draw(st.sampled_from(places(document)))))
        document = changed(document, path, draw(st.one_of(VALUES, NUMBERS, borrowed)), draw(st.booleans()))
    text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        first = draw(st.integers(0, len(text)))
        last = draw(st.integers(first, min(first + 40, len(text))))
        text = (
            text[:first]
            + draw(st.one_of(st.text(max_size=3), st.sampled_from(["{", "]", ",", '"', "1e999"])))
            + text[last:]
        )
    return text


def at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans") / "plan.json"


@pytest.mark.slow
@SETTINGS
@given(text=mutated())
def test_a_damaged_file_gives_a_plan_or_our_error_and_an_error_writes_nothing(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        plan = Plan.load(file)
    except PlanFileError:
        return
    repr(plan)
    plan.table()
    net = model()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    try:
        plan.apply_(net)
    except WellposedError:
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    else:
        assert all(bool(tensor.isfinite().all()) for tensor in net.state_dict().values())
    for use in (
        lambda: plan.param_groups(net, 0.1),
        lambda: wp.check(net, torch.randn(2, 2, 4, 4), plan=plan, draws=2),
    ):
        with contextlib.suppress(WellposedError):
            use()


@pytest.mark.slow
@SETTINGS
@given(raw=st.binary(max_size=60))
def test_bytes_that_are_no_plan_are_refused(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    with pytest.raises(PlanFileError, match=r"plan\.json"):
        Plan.load(file)
