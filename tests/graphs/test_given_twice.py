"""A tensor that is given twice stands for two signals, unless the model makes one of the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wellposed as wp


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.head((self.branch(one) - self.branch(other)).abs())


class Listed(Siamese):
    def forward(self, both: list[torch.Tensor], more: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(both[0], more["other"]) + super().forward(both[1], both[0])


class Reading(Siamese):
    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return super().forward(one, other) * (2.0 if float(one.sum()) > 1e9 else 1.0)


X = torch.zeros(64, 8)


@pytest.mark.parametrize(("model", "engine"), [(Siamese, "meta"), (Reading, "real")])
def test_two_arguments_are_two_signals(model: type[Siamese], engine: str) -> None:
    net = model()
    graph = wp.trace(net, X, X)
    assert graph.engine == engine
    assert [graph.values[value].name for value in graph.inputs] == ["0", "1"]
    mine, other = wp.plan(graph, method="autoinit"), wp.plan(net, X, X.clone(), method="autoinit")
    assert mine.prescriptions == other.prescriptions
    assert mine.prescriptions["head.weight"].std < 1.0
    assert wp.propagate(graph, weights=mine)["head"].second_moment == pytest.approx(1.0)


def test_by_keyword_and_inside_of_lists_and_dicts() -> None:
    graph = wp.trace(Siamese(), X, other=X)
    assert [graph.values[value].name for value in graph.inputs] == ["0", "other"]
    graph = wp.trace(Listed(), [X, X], {"other": X})
    assert [graph.values[value].name for value in graph.inputs] == ["0.0", "0.1", "1.other"]


def test_batches_of_both_are_taken_and_the_example_stays_as_it_is() -> None:
    graph = wp.trace(Siamese(), X, X)
    batch = (torch.randn(64, 8), torch.randn(64, 8))
    assert wp.check(graph, plan=wp.plan(graph, method="autoinit"), inputs=[batch, batch]).comparisons
    assert not X.any()


def test_what_a_model_makes_of_one_argument_stays_one_signal() -> None:
    class Same(Siamese):
        def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            return super().forward(one, one) + other.sum()

    graph = wp.trace(Same(), X, X)
    assert wp.propagate(graph)["abs"].second_moment == pytest.approx(0.0, abs=1e-9)


class Pairs(nn.Module):
    """Rows of one table for two inputs, or for two parts of one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(30, 16), nn.Linear(16, 2)

    def forward(self, one: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        one, other = (one, other) if other is not None else one.unbind(1)
        return self.head(self.table(one) - self.table(other))


TOKENS = torch.randint(0, 30, (64,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("example", [(TOKENS, TOKENS), (TOKENS, TOKENS.clone()), (TOKENS[:, None].expand(-1, 2),)])
def test_tokens_that_the_example_has_alike_are_two_signals(example: tuple[torch.Tensor, ...]) -> None:
    plan = wp.plan(Pairs(), *example, method="autoinit")
    assert plan.warnings == ()
    assert plan.prescriptions["head.weight"].signal_before == pytest.approx(2.0)
