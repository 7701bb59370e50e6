"""Random activation functions: well-formed graphs, the mutations, learnable factors."""

import math
import random

import pytest
import torch
from experiments.pangaea import BINARY, PARAMETERS, UNARY, Activation, Expression, X, mutated, random_function
from experiments.runs import w3
from experiments.runs.w3 import searched
from experiments.settings import from_plain
from torch.nn import functional

from experiments import pangaea
from wellposed.errors import OptionError

SWISH = Expression("mul", (X, Expression("sigmoid", (X,))))


def operators(node):
    return 1 + sum(operators(arg) for arg in node.args) if node.args else 0


def test_every_random_function_is_well_formed():
    factors = set()
    for seed in range(300):
        function = random_function(seed)
        nodes = [function.at(path) for path in function.paths()]
        assert function.args
        for node in nodes:
            arity = 0 if node.op == "x" else 1 if node.op in UNARY else 2
            assert len(node.args) == arity
            assert arity < 2 or node.op in BINARY
        used = sorted(node.parameter for node in nodes if node.parameter is not None)
        assert used == list(range(len(used)))
        factors.add(len(used))
        assert Activation(function, 3)(torch.randn(2, 3, 4, 4)).shape == (2, 3, 4, 4)
    assert factors == set(range(PARAMETERS + 1))


def test_functions_are_repeatable_and_differ():
    assert random_function(5) == random_function(5)
    assert len({str(random_function(seed)) for seed in range(100)}) > 60


def test_mutations_change_size_by_at_most_two_and_do_all_they_can():
    draw = random.Random(0)
    changes = [operators(mutated(SWISH, draw)) - operators(SWISH) for _ in range(400)]
    assert min(changes) == -1  # an operator is removed; with it, of a binary one, an argument
    assert max(changes) == 2  # a binary operator and the unary of its other argument
    assert {-1, 0, 1, 2} <= set(changes)


def test_a_removal_never_leaves_the_input_alone():
    draw = random.Random(0)
    function = Expression("tanh", (X,))
    assert all(mutated(function, draw).args for _ in range(200))


def test_the_module_computes_its_expression():
    x = torch.randn(2, 3, 4)
    assert torch.equal(Activation(SWISH, 3)(x), x * torch.sigmoid(x))
    assert torch.allclose(Activation(SWISH, 3)(x), functional.silu(x))


def test_learnable_factors_have_a_value_for_each_channel():
    function = Expression("add", (Expression("x", parameter=0), Expression("tanh", (X,), parameter=1)))
    module = Activation(function, 3)
    assert str(function) == "add(α·x, β·tanh(x))"
    with torch.no_grad():
        module.factors[0].copy_(torch.tensor([1.0, 2.0, 3.0]))
        module.factors[1].zero_()
    x = torch.randn(2, 3, 4, 4)
    assert torch.allclose(module(x), x * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))


def test_centred_functions_have_mean_zero_over_a_standard_normal():
    function = Expression("exp", (X,), parameter=0)
    module = Activation(function, 3, centered=True)
    assert module.mean == pytest.approx(math.exp(0.5), rel=1e-6)
    x = torch.randn(1, 3, 200_000, generator=torch.Generator().manual_seed(0))
    assert module(x).mean().abs() < 5 * (math.e**2 - math.e) ** 0.5 / 600_000**0.5
    with pytest.raises(OptionError, match="no finite mean"):
        Activation(Expression("exp", (Expression("exp", (X,)),)), 3, centered=True)


SEARCH = from_plain({"functions": 60, "population": 8, "sample": 3, "mutations": 2})


def nodes(function):
    return len(list(function.paths()))


def test_a_search_follows_the_best_of_the_young():
    """Fitness is the size of the graph, so that graphs grow; the same seed gives the same search."""
    seen = []

    def scored(index, function):
        assert index == len(seen)
        seen.append(function)
        return {"valid": nodes(function), "test": 0.0}

    rows = searched(SEARCH, 0, scored)
    assert [row["valid"] for row in rows] == [nodes(function) for function in seen]
    first, last = seen[:8], seen[-8:]
    assert min(map(nodes, last)) > max(map(nodes, first))
    for function in seen:
        used = sorted(
            function.at(path).parameter for path in function.paths() if function.at(path).parameter is not None
        )
        assert used == list(range(len(used)))
    kept = seen.copy()
    seen.clear()
    searched(SEARCH, 0, scored)
    assert seen == kept
    seen.clear()
    searched(SEARCH, 1, scored)
    assert seen != kept


def test_the_oldest_go_even_where_they_are_the_best():
    """The first function alone is fit; once it is gone, no child is of it."""
    parents = []
    draw_child = pangaea.child

    def noted(parent, draw):
        parents.append(parent)
        return draw_child(parent, draw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(w3, "child", noted)
        found = []
        searched(
            from_plain({"functions": 20, "population": 8, "sample": 8, "mutations": 2}),
            0,
            lambda index, function: found.append(function) or {"valid": float(index == 0), "test": 0.0},
        )
    first, *rest = parents
    assert first is found[0]
    assert not any(parent is found[0] for parent in rest)
