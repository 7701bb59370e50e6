"""Which operators hand on the scale of a parameter: all that are linear in it, by their facts."""

from __future__ import annotations

import pytest
import torch
from tests.operators.test_facts import NAMED, Sample, samples
from torch import nn

from wellposed import trace
from wellposed.graphs.run import call, dense
from wellposed.operators.facts import facts_of
from wellposed.operators.scale_parameters import scale_parameters
from wellposed.operators.schema import named_arguments

ELSEWHERE = {
    "looks_up": "tables are contractions of their own",
    "adds": "a term that the operator makes itself, for which no scale can be chosen",
}
"""Facts by which a linear operator hands no scale on, with the reason."""


class _Made(nn.Module):
    """An input times a number that is made of a parameter by one call of an operator."""

    def __init__(self, sample: Sample, group: tuple[str, ...]) -> None:
        super().__init__()
        self.sample, self.group = sample, sample.group(group)
        first = next(t for t in sample.numbers(group))
        self.weight = nn.Parameter(first.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken = iter([self.weight])

        def other(value: torch.Tensor) -> torch.Tensor:
            return next(taken, torch.zeros_like(value)) if isinstance(value, torch.Tensor) else 0.0 * value

        given = self.sample.mapped(other, self.group)
        positional = [a.name for a in given.op._schema.arguments if not a.kwarg_only and a.name in given.named]
        rest = {k: v for k, v in given.named.items() if k not in positional}
        made = dense(call(given.op, [given.named[name] for name in positional], rest)[0])
        return x * (torch.view_as_real(1.0 * made) if made.is_complex() else made).sum()


def _cases() -> list[tuple[str, int]]:
    linear = {name: {facts_of(op) for op in ops} for name, ops in NAMED.items()}
    return [
        (name, at)
        for name, (facts,) in linear.items()
        for at in range(len(facts.linear))
        if not any(getattr(facts, field) for field in ELSEWHERE)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), _cases())
def test_a_linear_operator_hands_the_scale_of_a_parameter_on(name: str, at: int) -> None:
    handed = []
    for op in NAMED[name]:
        group = facts_of(op).linear[at]
        for sample in samples(op):
            if not sample.numbers(group) or sample.is_whole(group):
                continue
            try:
                graph = trace(_Made(sample, group), torch.randn(3))
            except RuntimeError:  # no such call with zeros
                continue
            product = graph.nodes[-1]
            made = next(a for a in named_arguments(product).values() if getattr(a, "value", None) not in graph.inputs)
            handed.append(scale_parameters(graph).get(made.value))
    assert handed, f"no sample of {name} is linear in a parameter"
    assert all(one is not None and one.parameter == "weight" for one in handed)
