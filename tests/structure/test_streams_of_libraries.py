"""The residual streams of models of transformers and timm, against tables made by hand from the models' source.

A table says which branches each stream has and which parameters carry them. The tables themselves are checked without
any graph: multiplying the carriers of one branch by c must do what a hook does that multiplies the branch by c.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.structure.streams_notation import Branch, Case, Part
from tests.structure.streams_timm import TIMM
from tests.structure.streams_transformers import TRANSFORMERS
from torch import nn

from wellposed.graphs import trace

pytestmark = [
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("torchvision", "timm", "transformers"))),
        reason="needs pip install 'wellposed[zoo]'",
    ),
    pytest.mark.filterwarnings("ignore"),
]

C = 0.5
"""A power of two: scaling by it rounds nothing, so that a model in float64 that casts to float32 is exact as well."""

CASES = (*TRANSFORMERS, *TIMM)
every_case = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])


# ---- what is read off the graph -------------------------------------------------------------------------------------


def given(case: Case) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    inputs = case.example()
    return tuple(value for key, value in inputs.items() if not key), {key: x for key, x in inputs.items() if key}


def is_expected(found: Any, expected: Branch) -> bool:
    if not expected.carriers:
        return not found.carriers and re.search(expected.reason, found.reason, re.IGNORECASE) is not None
    return sorted(found.carriers) == sorted(expected.carriers)


def matches(found: tuple[Any, ...], parts: list[Part]) -> bool:
    if not parts:
        return not found
    return any(
        len(option) <= len(found) and all(map(is_expected, found, option)) and matches(found[len(option) :], parts[1:])
        for option in parts[0]
    )


def shown(streams: Iterable[Iterable[str]]) -> str:
    return "\n".join(f"  stream {i}:\n" + "\n".join(f"    {one}" for one in lines) for i, lines in enumerate(streams))


@pytest.mark.slow
@every_case
def test_streams_and_their_carriers_are_those_of_the_table(case: Case) -> None:
    from wellposed.structure.streams import residual_streams

    args, kwargs = given(case)
    model = case.build()
    graph = trace(model, *args, **kwargs)
    streams = residual_streams(graph)
    parameters = dict(model.named_parameters())
    for one in (one for stream in streams for one in stream.branches):
        assert bool(one.carriers) != bool(one.reason)
        assert set(one.carriers) <= set(parameters)
        assert len(set(one.carriers)) == len(one.carriers)
    if not case.streams:
        assert not streams
    found = [stream.branches for stream in streams if not stream.nested]
    right = len(found) == len(case.streams) and any(
        all(map(matches, order, case.streams)) for order in itertools.permutations(found)
    )
    if not right:
        got = shown([", ".join(one.carriers) or f"nothing: {one.reason}" for one in branches] for branches in found)
        due = shown(
            [" | ".join("; ".join(map(str, o)) or "no branch" for o in part) for part in s] for s in case.streams
        )
        pytest.fail(f"{case.name}: found\n{got}\nexpected\n{due}", pytrace=False)


# ---- the tables, without a graph ------------------------------------------------------------------------------------


def refill_(model: nn.Module) -> None:
    """Fill in numbers by which every branch is seen in the outputs: gains of 0 or 1e-6 hide one."""
    for parameter in model.parameters():
        if parameter.dim() < 2:
            nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)


def ready(case: Case) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """The model in float64, and its output for an example."""
    model = case.build().double().eval()
    if hasattr(model, "config"):
        model.config._experts_implementation = "eager"  # the product over all experts at once takes no float64
    refill_(model)
    args, kwargs = given(case)
    args = tuple(x.double() if x.is_floating_point() else x for x in args)
    kwargs = {key: x.double() if x.is_floating_point() else x for key, x in kwargs.items()}

    @torch.no_grad()
    def output() -> torch.Tensor:
        made = model(*args, **kwargs)
        return made if isinstance(made, torch.Tensor) else made[0]

    return model, output


@contextmanager
def scaled(model: nn.Module, chosen: Iterable[str], beside: float = 0.0) -> Iterator[None]:
    parameters = dict(model.named_parameters())
    before = {name: parameters[name].detach().clone() for name in chosen}
    with torch.no_grad():
        for name, value in before.items():
            parameters[name].copy_((beside + value) * C - beside)
        yield
        for name, value in before.items():
            parameters[name].copy_(value)


@contextmanager
def hooked(model: nn.Module, modules: Iterable[str]) -> Iterator[None]:
    def times(_module: nn.Module, _args: Any, output: Any) -> Any:
        return (C * output[0], *output[1:]) if isinstance(output, tuple) else C * output

    handles = [model.get_submodule(name).register_forward_hook(times) for name in modules]
    yield
    for handle in handles:
        handle.remove()


def seen(name: str) -> bool:
    """Whether an output depends on it: what adds the same to all channels, the next layer norms remove."""
    return not name.endswith("mlp_tokens.fc2.bias")


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / a.abs().max())


@pytest.mark.slow
@every_case
def test_carriers_do_what_a_factor_on_the_branch_does(case: Case) -> None:
    branches = [one for one in case.branches() if one.hooks]
    if not branches:
        assert not case.streams
        return
    model, output = ready(case)
    plain = output()
    for one in branches:
        with hooked(model, one.hooks):
            due = output()
        assert distance(plain, due) > 1e-7, one.hooks
        if one.carriers:
            with scaled(model, one.carriers, case.beside):
                # Gemma multiplies by 1 + w in float32, whatever it is given
                assert distance(output(), due) < (1e-6 if case.beside else 1e-10), one.carriers
        # No carrier is missing, and none too many: without one of them the rest does something else.
        fewer = ([name for name in one.carriers if name != left_out] for left_out in one.carriers if seen(left_out))
        for chosen in (*one.tried, *fewer):
            with scaled(model, chosen, case.beside):
                assert distance(output(), due) > 1e-7, chosen
    assert torch.equal(plain, output())
