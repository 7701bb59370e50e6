"""A check looks at the model that it is given: its parameters are held against the plan."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable

import pytest
import torch
from benchmarks.nets.corruptions import CORRUPTIONS
from torch import nn

import wellposed as wp
from wellposed.checks.own import own_parameters
from wellposed.plans import Drawn, Rescaled

# ---- nets ------------------------------------------------------------------------------------------------------------


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))


def convolutional() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=4), nn.GELU(),
        nn.Flatten(), nn.Linear(256, 5),
    )  # fmt: skip
    nn.init.constant_(model[6].bias, -math.log(99.0))
    return model


class Tokens(nn.Module):
    """A padded table, a recurrent layer that is left alone, a branch that starts closed, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.steps, self.norm = nn.Embedding(40, 16, padding_idx=0), nn.GRU(16, 16), nn.LayerNorm(16)
        self.mix, self.gate, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight
        nn.init.zeros_(self.gate.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.steps(self.table(x))[0]
        return self.head(self.norm(x + self.gate(torch.relu(self.mix(x)))))


def weight_normed() -> nn.Module:
    return nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(8, 24)), nn.SELU(), nn.Linear(24, 24), nn.SELU(),
        nn.Linear(24, 6),
    )  # fmt: skip


NETS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, dict[str, object]]] = {
    "dense": (dense, torch.zeros(32, 8), {}),
    "centred": (dense, torch.zeros(32, 8), {"center": True}),
    "kaiming": (dense, torch.zeros(32, 8), {"method": "kaiming"}),
    "orthogonal": (dense, torch.zeros(32, 8), {"method": "orthogonal"}),
    "mup": (dense, torch.zeros(32, 8), {"method": "mup"}),
    "half": (lambda: dense().bfloat16(), torch.zeros(32, 8, dtype=torch.bfloat16), {}),
    "convolutional": (convolutional, torch.zeros(8, 3, 8, 8), {}),
    "tokens": (Tokens, torch.zeros(8, 10, dtype=torch.long), {}),
    "weight norm": (weight_normed, torch.zeros(32, 8), {}),
    "a part": (dense, torch.zeros(32, 8), {"only": "5.*"}),
}


def planned(name: str, seed: int = 0) -> tuple[nn.Module, torch.Tensor, wp.Plan]:
    torch.manual_seed(seed)
    make, x, options = NETS[name]
    model = make()
    return model, x, wp.initialize_(model, x, seed=seed, **options)


# ---- corruptions -----------------------------------------------------------------------------------------------------


def test_a_part_that_is_written_over_by_one_number_is_no_training() -> None:
    model, x, plan = planned("dense")
    model[3].weight.data[:16] = 0.0
    own = own_parameters(wp.trace(model, x), plan)
    assert [(one.name, one.words) for one in own.wrong] == [("3.weight", "0 in 512 of 1024 elements")]


def element_(model: nn.Module) -> None:
    model[3].weight[3, 4] = 10.0


BY_HAND: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "all smaller": (lambda model: [p.mul_(0.8) for p in model.parameters()], "the planned numbers times 0.8"),
    "a weight smaller": (lambda model: model[3].weight.mul_(0.9), "the planned numbers times 0.9"),
    "an element": (element_, "other numbers in 1 of 1024 elements"),
    "a row larger": (lambda model: model[3].weight[5].mul_(5.0), "another number in each row"),
    "scattered": (lambda model: model[3].weight.view(-1)[::9].mul_(torch.rand(114) + 2.0), "in 114 of 1024"),
    "shifted": (lambda model: model[3].weight.add_(0.3), "the planned numbers plus 0.3"),
    "clamped": (lambda model: model[3].weight.clamp_(-0.1, 0.1), "±0.1 in "),
}


@pytest.mark.parametrize("done", BY_HAND)
def test_a_change_that_no_training_makes_is_wrong_where_nothing_is_trained(done: str) -> None:
    model, x, plan = planned("dense")
    corrupt, words = BY_HAND[done]
    with torch.no_grad():
        corrupt(model)
    own = own_parameters(wp.trace(model, x), plan)
    assert words in {one.name: one.words for one in own.wrong}["3.weight"]
    assert own.applied
    assert not wp.check(model, x, plan=plan).ok


@pytest.mark.slow
def test_every_corruption_of_a_parameter_is_named_and_nothing_of_untouched_models() -> None:
    tried, missed, excused = 0, [], []
    for net in NETS:
        model, x, plan = planned(net)
        graph = wp.trace(model, x)
        assert not own_parameters(graph, plan).deviations, net
        for name, parameter in graph.parameters.items():
            held = parameter.tensor.detach()
            before = held.clone()
            for corruption, corrupt in CORRUPTIONS.items():
                with torch.no_grad():
                    corrupt(held)
                if torch.equal(held, before):  # four times zero
                    continue
                tried += 1
                own = own_parameters(graph, plan)
                if not any(f"{name!r} (" in line for line in own.lines()):
                    missed.append((net, name, corruption))
                if name not in [one.name for one in own.wrong]:
                    excused.append((net, name, corruption))
                held.copy_(before)
        assert not own_parameters(graph, plan).deviations, net
    assert tried > 500
    assert not missed, (len(missed), tried, missed[:20])
    # the only weight that a plan draws, so that nothing tells a corruption from a plan that was not applied, and kept
    # ones, which another instance of the model has of about that size
    assert {net for net, *_ in excused} <= {"a part"}
    assert len(excused) <= 0.01 * tried


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_models_that_hold_their_plans_are_as_planned(name: str) -> None:
    for seed in range(20):
        model, x, plan = planned(name, seed)
        own = own_parameters(wp.trace(model, x), plan)
        assert own.applied
        assert not own.deviations
        assert list(own.lines()) == [f"the model's own parameters: all {own.planned} as planned"]


def test_a_verdict_fails_and_names_what_is_wrong_first() -> None:
    model, x, plan = planned("dense")
    model[3].weight.data.mul_(4.0)
    verdict = wp.check(model, x, plan=plan)
    assert not verdict.ok
    first, *lines = verdict.summary().splitlines()
    assert "1 of the model's own parameters wrong" in first
    assert "1 of 8 are not as planned: '3.weight' (the planned numbers times 4)" in "\n".join(lines)
    assert json.loads(verdict.to_json())["own"]["wrong"] == {"3.weight": "the planned numbers times 4"}
    model[3].weight.data.mul_(0.25)
    assert wp.check(model, x, plan=plan).ok


def test_every_parameter_set_to_nan_is_named_with_and_without_a_plan() -> None:
    model, x, plan = planned("dense")
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    for verdict in (wp.check(model, x, plan=plan), wp.check(model, x)):
        assert not verdict.ok
        assert len(verdict.own.wrong) == 8
        assert "8 of 8 are not" in verdict.summary()


class Noisy(nn.Module):
    """Adds noise that it draws into a buffer, or what the buffer holds."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.body, self.draws = nn.Linear(8, 8), draws
        self.register_buffer("noise", torch.full((8,), math.nan))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = self.noise.normal_() if self.draws else torch.where(x > 9.0, self.noise, 0.0)
        return self.body(x) + noise


@pytest.mark.parametrize("draws", [True, False])
def test_nan_in_a_buffer_that_a_forward_fills_before_it_reads_it_does_not_count(draws: bool) -> None:
    assert wp.check(Noisy(draws), torch.randn(16, 8)).ok == draws


def test_nan_in_a_buffer_counts_and_infinities_of_a_mask_do_not() -> None:
    model, x, plan = planned("convolutional")
    model.register_buffer("mask", torch.full((3,), -math.inf))
    assert wp.check(model, x, plan=plan).ok
    model[1].running_mean[2] = float("nan")
    assert [one.name for one in own_parameters(wp.trace(model, x), plan).wrong] == ["1.running_mean"]


# ---- what is no corruption -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_training_is_told_apart(optimizer: type[torch.optim.Optimizer]) -> None:
    model, x, plan = planned("dense")
    steps = optimizer(model.parameters(), lr=0.01)
    for step in range(20):
        inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        steps.zero_grad()
        nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1)).backward()
        steps.step()
    own = own_parameters(wp.trace(model, x), plan)
    assert not own.wrong
    assert list(own.lines()) == ["the model's own parameters differ from the plan in 8 of 8: trained since?"]
    assert wp.check(model, x, plan=plan).ok
    model[3].weight.data.zero_()
    assert [one.name for one in own_parameters(wp.trace(model, x), plan).wrong] == ["3.weight"]


def test_dead_units_inputs_that_are_never_met_and_decay_alone_are_a_training() -> None:
    model, x, plan = planned("dense")
    with torch.no_grad():
        model[0].bias[:24] = -1e3
    plan = wp.plan(model, x, skip="0.*")
    plan.apply_(model)
    sparse = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
    inputs = torch.zeros(32, 64)
    inputs[:, ::9] = torch.randn(32, 8)
    for net, met in ((model, torch.randn(32, 8)), (sparse, inputs)):
        said = plan if net is model else wp.initialize_(net, met)
        for name in ("SGD", "AdamW"):
            said.apply_(net)
            steps = getattr(torch.optim, name)(net.parameters(), lr=0.01)
            for _ in range(3):
                steps.zero_grad()
                nn.functional.cross_entropy(net(met), met[:, :3].argmax(1)).backward()
                steps.step()
            assert not own_parameters(wp.trace(net, met), said).wrong, name


def test_rows_of_a_table_that_no_token_meets_are_no_corruption() -> None:
    model = nn.Sequential(nn.Embedding(64, 16), nn.Flatten(), nn.Linear(64, 5))
    ids = torch.arange(32).view(8, 4) % 3
    plan = wp.initialize_(model, ids)
    loss = nn.functional.cross_entropy(model(ids), torch.arange(8) % 5)
    loss.backward()
    with torch.no_grad():
        model[0].weight.sub_(0.01 * model[0].weight.grad)
    own = own_parameters(wp.trace(model, ids), plan)
    assert [one.kind for one in own.deviations] == ["moved"]


def test_a_plan_that_is_not_applied_is_said_and_no_failure() -> None:
    torch.manual_seed(0)
    model, x = dense(), torch.zeros(32, 8)
    verdict = wp.check(model, x, plan=wp.plan(model, x, method="autoinit"))
    assert verdict.ok
    assert "are not the plan's (6 of 8 differ): not applied yet, or trained since?" in verdict.summary()


def test_kept_parameters_of_another_instance_are_no_failure() -> None:
    _, x, plan = planned("tokens")
    torch.manual_seed(5)
    other = Tokens()
    plan.apply_(other)
    verdict = wp.check(other, x, plan=wp.Plan.model_validate_json(plan.to_json()))
    assert verdict.own.applied
    assert not verdict.own.wrong
    assert " parameters that the plan leaves alone hold other numbers" in verdict.summary()


def test_rescaled_parameters_are_held_against_their_scale() -> None:
    model, x, plan = planned("dense")
    held = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    said = dict(plan.prescriptions)
    for name, one in said.items():
        if isinstance(one, Drawn):
            said[name] = Rescaled(
                name=name, shape=one.shape, std=2.0 * float(held[name].square().mean().sqrt()), reason=""
            )
    rescaling = plan.model_copy(update={"prescriptions": said})
    rescaling.apply_(model)
    graph = wp.trace(model, x)
    assert not own_parameters(graph, rescaling).deviations
    model[0].weight.data.mul_(4.0)
    model[5].weight.data.zero_()
    assert [one.name for one in own_parameters(graph, rescaling).wrong] == ["0.weight", "5.weight"]


def test_a_check_leaves_the_parameters_as_they_are() -> None:
    model, x, plan = planned("tokens")
    before = copy.deepcopy(model.state_dict())
    wp.check(model, x, plan=plan, draws=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
