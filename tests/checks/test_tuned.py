"""`wellposed.transfer`: numbers of a small model for a larger one, line by line."""

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.rates import Hyperparameters, over_budget

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Net(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.read, self.head = nn.Linear(5, width), nn.Linear(width, 3)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, x):
        return self.head(self.blocks(self.read(x)))


def by_name(groups):
    return {name: group for group in groups for name in group["param_names"]}


def test_it_is_the_plan_and_the_budget_together():
    small, large = Net(2, 8), Net(8, 32)
    found = wp.transfer(
        small, large, X, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8, batch=(32, 64), tokens=(1e6, 4e6)
    )
    plan = wp.plan(large, X, method="complete_p", base=small)
    budget = over_budget(Hyperparameters(1e-2, 0.1, (0.9, 0.95), 1e-8), batch=(32, 64), tokens=(1e6, 4e6))
    assert found.plan == plan
    assert found.hyperparameters == budget.hyperparameters
    after = budget.hyperparameters
    expected = plan.param_groups(large, after.lr, "adamw", after.weight_decay, eps=after.eps, betas=after.betas)
    assert by_name(found.param_groups(large)).keys() == by_name(expected).keys()
    for name, group in by_name(found.param_groups(large)).items():
        assert {**group, "params": 0} == {**by_name(expected)[name], "params": 0}
    assert found.lines[-len(budget.lines) :] == budget.lines
    assert all(line.basis in ("derived", "empirical") and line.source for line in found.lines)
    found.apply_(large)
    torch.optim.AdamW(found.param_groups(large))


class Heads(nn.Module):
    """Words in and out by one table that the model multiplies, and one block with attention, used at every depth."""

    def __init__(self, depth, width):
        super().__init__()
        self.depth, self.words = depth, nn.Embedding(7, width)
        self.before, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, ids):
        x = self.words(ids) * 3.0
        for _ in range(self.depth):
            y = self.before(x)
            q, k, v = (part(y).unflatten(-1, (2, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
            x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.norm(x) @ self.words.weight.T


def worth(line):
    """Return the factor that a line's formula says."""
    formula, _, values = line.formula.partition("; ")
    known = {}
    for text in values.split(", "):
        key, *rest = text.split(" = ")
        known[key] = float(rest[-1])
    return eval(formula.replace("²", "**2").replace("·", "*").replace("^", "**"), {}, known)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "alpha"), [("adamw", 1.0), ("adamw", 0.5), ("sgd", 1.0), ("sgd", 0.5)])
@pytest.mark.parametrize(
    ("kind", "example", "places"),
    [
        (
            Net,
            X,
            {
                "weights in branches": "blocks.0.up.weight",
                "weights at the ends of branches": "blocks.0.down.weight",
                "vectors in branches": "blocks.0.up.bias",
                "readouts": "head.weight",
                "embeddings and weights that meet the input": "read.weight",
            },
        ),
        (
            Heads,
            torch.arange(7).repeat(2, 1),
            {
                "weights in branches": "value.weight",
                "weights at the ends of branches": "out.weight",
                "weights in branches that carry a factor": "query.weight",
                "vectors that carry a factor": "norm.weight",
                "weights that carry a factor": "words.weight",
            },
        ),
    ],
)
def test_its_lines_say_what_the_groups_hold(kind, example, places, optimizer, alpha):
    small, large = kind(2, 8), kind(6, 32)
    numbers = {"lr": 1.0, "weight_decay": 0.1} | ({"eps": 1e-8} if optimizer == "adamw" else {})
    found = wp.transfer(small, large, example, **numbers, optimizer=optimizer, alpha=alpha)
    groups = by_name(found.param_groups(large))
    said = {(line.quantity, line.after) for line in found.lines}
    assert not any(line.axis != "model" for line in found.lines)
    for line in found.lines:
        assert line.before * worth(line) == pytest.approx(line.after, rel=1e-3), line
    for where, name in places.items():
        for quantity, before in numbers.items():
            held = groups[name].get(quantity, before)
            assert (f"{quantity} of {where}", held) in said or held in (before, 0.0)


def test_the_lines_of_muon_say_that_it_does_it_itself():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    found = wp.transfer(Net(2, 8), Net(8, 32), X, lr=0.02, weight_decay=0.1, optimizer="muon", others=("adamw", 3e-3))
    assert found.lines
    assert all(line.formula.startswith("Muon's own") for line in found.lines)


def test_what_is_left_out_is_the_optimizers_own():
    found = wp.transfer(Net(2, 8), Net(4, 8), X, lr=1e-2, batch=(32, 64))
    assert found.hyperparameters.betas == pytest.approx((0.8, 0.998))
    assert found.hyperparameters.eps == pytest.approx(1e-8 / 2**0.5)
    assert {group["betas"] for group in found.param_groups(Net(4, 8))} == {found.hyperparameters.betas}


def test_the_answer_is_a_sentence_a_page_and_a_table():
    found = wp.transfer(Net(2, 8), Net(8, 32), X, lr=1e-2, weight_decay=0.1, tokens=(1e6, 4e6))
    assert str(found) == (
        "Net from a smaller one by complete_p: lr 0.01 → 0.005, decay 0.1 → 0.05, times what each group's line says "
        "(empirical in part)"
    )
    assert "c / n_in; n_in = 4, c = m^-1 = 0.25" in repr(found)
    assert found.table().row_count == len(found.lines)


def test_muon_takes_adamw_for_the_rest():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    large = Net(8, 32)
    found = wp.transfer(Net(2, 8), large, X, lr=0.02, optimizer="muon", others=("adamw", 3e-3))
    assert {group["family"] for group in found.param_groups(large)} == {"muon", "adam"}


def test_bad_input_is_refused():
    with pytest.raises(OptionError, match="two models of PyTorch, the small one first, received int and Net"):
        wp.transfer(3, Net(2, 8), X, lr=0.1)
    with pytest.raises(OptionError, match="base is larger"):
        wp.transfer(Net(4, 8), Net(2, 8), X, lr=0.1)
    with pytest.raises(OptionError, match="lr"):
        wp.transfer(Net(2, 8), Net(4, 8), X, lr=-0.1)
    with pytest.raises(OptionError, match=r"no rule carries .* 'muon' over batch size"):
        wp.transfer(Net(2, 8), Net(4, 8), X, lr=0.1, optimizer="muon", others=("adamw", 0.1), batch=(1, 2))
    with pytest.raises(OptionError, match="no option"):
        wp.transfer(Net(2, 8), Net(4, 8), X, lr=0.1, scheem="autoinit")
