"""Groups for torch optimizers: rates by family and width against the published tables, and what is refused."""

import io
import math

import pytest
import torch
from rich.console import Console
from tests.plans.models import Tied, assert_untouched, plan_for, snapshot
from torch import nn
from torch.nn.parallel import DataParallel

import wellposed as wp
from wellposed.errors import OptionError, PlanError, UnsupportedError
from wellposed.plans import groups_table
from wellposed.plans.optimizers import family_of

WIDTH = 64
MUON = getattr(torch.optim, "Muon", None)  # older versions of torch lack it


class Block(nn.Module):
    """One parameter of every kind that the tables tell apart."""

    def __init__(self, width=WIDTH, wider=2):
        super().__init__()
        self.read = nn.Linear(10, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, wider * width)
        self.readout = nn.Linear(wider * width, 5)

    def forward(self, x):
        return self.readout(self.hidden(self.norm(self.read(x))).relu())


class TiedLanguage(Tied):
    def forward(self, tokens):
        return self.head(self.embed(tokens))


def planned(method="mup", model=None, **options):
    model = model or Block()
    example = torch.randn(4, 10, dtype=next(model.parameters()).dtype)
    return model, wp.plan(model, example, method=method, **options)


def by_name(groups, key="lr"):
    return {name: group[key] for group in groups for name in group["param_names"]}


def every_optimizer():
    classes = [getattr(torch.optim, name) for name in dir(torch.optim)]
    classes = [c for c in classes if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)]
    return [c for c in classes if c is not torch.optim.Optimizer]


# ---- rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [32.0, 256.0])
def test_rates_follow_table_3_of_the_paper(base):
    """Yang et al. 2022, Table 3: SGD fan_out, 1, 1/fan_in; Adam 1, 1/fan_in, 1/fan_in, for input, hidden and output."""
    model, plan = planned(model=Block(wider=1))
    n = WIDTH / base
    sgd = by_name(plan.param_groups(model, 0.1, "sgd", base_width=base))
    adam = by_name(plan.param_groups(model, 0.1, "adam", base_width=base))
    table = {
        "read.weight": (n, 1), "read.bias": (n, 1), "norm.weight": (n, 1), "norm.bias": (n, 1),
        "hidden.weight": (1, 1 / n), "hidden.bias": (n, 1), "readout.weight": (1 / n, 1 / n), "readout.bias": (1, 1),
    }  # fmt: skip
    assert sgd == pytest.approx({name: 0.1 * pair[0] for name, pair in table.items()}, rel=1e-12)
    assert adam == pytest.approx({name: 0.1 * pair[1] for name, pair in table.items()}, rel=1e-12)


def test_rectangular_hidden_weights_follow_the_spectral_condition():
    """Yang, Simon & Bernstein 2023, parametrization 1: SGD's rate of a hidden weight is fan_out/fan_in."""
    model, plan = planned(model=Block(wider=3))
    rates = by_name(plan.param_groups(model, 0.1))
    assert rates["hidden.weight"] == pytest.approx(0.1 * 3)


@pytest.mark.skipif(MUON is None, reason="this torch has no Muon")
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("wider", [0.5, 1, 4])
def test_a_step_of_muon_has_the_spectral_norm_that_the_condition_asks_for(adjust, wider):
    """Condition 1 of the same: the update's spectral norm is √(fan_out/fan_in); measured on real steps."""
    for width in (32, 512):
        wide = int(wider * width)
        model = nn.Sequential(nn.Linear(10, width), nn.Linear(width, wide, bias=False), nn.Linear(wide, 5))
        plan = wp.plan(model, torch.randn(4, 10), method="mup")
        probe = torch.optim.Muon([torch.zeros(2, 2)], adjust_lr_fn=adjust)
        groups = plan.param_groups(model, 0.1, probe, others=("adamw", 1e-3))
        mine = [group for group in groups if group["family"] == "muon"]
        assert [group["param_names"] for group in mine] == [["1.weight"]]
        before = model[1].weight.detach().clone()
        optimizer = torch.optim.Muon(mine, weight_decay=0.0, momentum=0.0, nesterov=False, adjust_lr_fn=adjust)
        model[1].weight.grad = torch.randn_like(before)
        optimizer.step()
        step = torch.linalg.svdvals(model[1].weight.detach() - before)
        asked = 0.1 * math.sqrt(wide / width) * {"original": 1.0, "match_rms_adamw": 0.2 * math.sqrt(128)}[adjust]
        # Muon's polynomial brings singular values into 0.7 to 1.2 (Jordan et al. 2024); a wrong exponent makes it 4
        assert 0.7 < float(step.square().mean().sqrt()) / asked < 1.2


@pytest.mark.skipif(MUON is None, reason="this torch has no Muon")
@pytest.mark.parametrize("wider", [0.25, 1, 4])
def test_muons_epsilon_follows_the_norm_of_the_gradient(wider):
    """It bounds that norm from below, as no elementwise one does; measured on gradients of the model."""
    ratios = []
    for width in (64, 1024):
        torch.manual_seed(0)
        wide = int(wider * width)
        small, model = (
            nn.Sequential(nn.Linear(10, n), nn.Linear(n, int(wider * n), bias=False), nn.Linear(int(wider * n), 5))
            for n in (64, width)
        )
        x = torch.randn(32, 10)
        plan = wp.plan(model, x, method="complete_p", base=small, seed=0)
        plan.apply_(model)
        (mine,) = (g for g in plan.param_groups(model, 0.1, "muon", others=("adamw", 1e-3)) if g["family"] == "muon")
        (model(x) * torch.randn(32, 5)).sum().backward()
        assert model[1].weight.shape == (wide, width)
        ratios.append(float(model[1].weight.grad.norm()) / mine["eps"])
    assert ratios[1] / ratios[0] == pytest.approx(1.0, rel=0.3)


def test_one_rate_for_all_without_mup_but_for_the_plans_own_multipliers():
    model, plan = planned("autoinit")
    assert set(by_name(plan.param_groups(model, 0.1, "adamw")).values()) == {0.1}
    said = plan.prescriptions["hidden.weight"].changed(lr_multiplier=0.25)
    plan = plan.model_copy(update={"prescriptions": plan.prescriptions | {"hidden.weight": said}})
    assert by_name(plan.param_groups(model, 0.1))["hidden.weight"] == 0.025


def test_a_mup_plan_gives_standard_rates_where_asked():
    model, plan = planned()
    assert set(by_name(plan.param_groups(model, 0.1, width="standard")).values()) == {0.1}


def test_mup_needs_a_plan_with_its_readouts():
    model, plan = planned("autoinit")
    with pytest.raises(PlanError, match="method='mup'"):
        plan.param_groups(model, 0.1, width="mup")


def test_a_plan_from_a_file_gives_the_same_groups(tmp_path):
    model, plan = planned(head_dim=8)
    plan.save(tmp_path / "plan.json")
    again = wp.Plan.load(tmp_path / "plan.json")
    assert by_name(again.param_groups(model, 0.1, "adamw")) == by_name(plan.param_groups(model, 0.1, "adamw"))


# ---- every parameter once -------------------------------------------------------------------------------------------


def test_every_trainable_parameter_once_and_ties_once():
    model = TiedLanguage()
    plan = wp.plan(model, torch.zeros(2, 3, dtype=torch.long), method="mup")
    groups = plan.param_groups(model, 0.1, "adamw", 0.1)
    held = [parameter for group in groups for parameter in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in model.parameters()]
    model, plan = planned()
    model.norm.weight.requires_grad_(False)
    names = by_name(plan.param_groups(model, 0.1, "adamw", 0.1))
    assert set(names) == {name for name, p in model.named_parameters() if p.requires_grad}


def test_groups_of_wrapped_models_go_through_optimizers_unchanged():
    model, plan = planned()
    before = snapshot(model)
    groups = plan.param_groups(DataParallel(model), 0.1, "adamw", 0.01)
    assert_untouched(model, before)
    optimizer = torch.optim.AdamW(groups)
    model(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    again = torch.optim.AdamW(plan.param_groups(model, 0.2, "adamw", 0.01))
    again.load_state_dict(optimizer.state_dict())
    assert by_name(again.param_groups) == by_name(groups)
    assert [group["lr_multiplier"] for group in again.param_groups] == [group["lr_multiplier"] for group in groups]
    assert len({group["name"] for group in groups}) == len(groups)


@pytest.mark.parametrize("kind", every_optimizer(), ids=lambda kind: kind.__name__)
def test_every_optimizer_of_torch_is_known_or_refused_with_the_reason(kind):
    model, plan = planned()
    if kind.__name__ in ("LBFGS", "Adafactor"):
        with pytest.raises(UnsupportedError, match=kind.__name__.lower()):
            plan.param_groups(model, 0.1, kind)
        return
    others = ("adamw", 0.1) if kind is MUON else None
    groups = plan.param_groups(model, 0.1, kind, others=others)
    mine = [group for group in groups if kind is not MUON or group["family"] == "muon"]
    optimizer = kind(mine)
    assert by_name(optimizer.param_groups) == by_name(mine)
    assert {group["lr"] for group in kind(mine, lr=7.0).param_groups} == {group["lr"] for group in mine}


def test_classes_instances_and_subclasses_have_the_family_of_their_name():
    class Mine(torch.optim.AdamW):
        pass

    model = nn.Linear(2, 2)
    for given in ("AdamW", "torch.optim.adamw", torch.optim.AdamW, Mine, Mine(model.parameters())):
        assert (family_of(given).name, family_of(given).decay) == ("adam", "decoupled")
    assert family_of(torch.optim.RAdam(model.parameters(), decoupled_weight_decay=True)).decay == "decoupled"
    assert family_of(torch.optim.RAdam(model.parameters())).decay == "gradient"


# ---- weight decay ---------------------------------------------------------------------------------------------------


def test_weights_and_embeddings_decay_and_vectors_do_not_unless_asked():
    model = TiedLanguage()
    plan = wp.plan(model, torch.zeros(2, 3, dtype=torch.long))
    assert by_name(plan.param_groups(model, 0.1, "adamw", 0.5), "weight_decay") == {"embed.weight": 0.5}
    model, plan = planned("kaiming")
    decays = by_name(plan.param_groups(model, 0.1, "adamw", 0.5), "weight_decay")
    assert {name for name, decay in decays.items() if decay} == {"read.weight", "hidden.weight", "readout.weight"}
    decays = by_name(plan.param_groups(model, 0.1, "adamw", 0.5, decay_all=True), "weight_decay")
    assert set(decays.values()) == {0.5}


class Excepting(nn.Module):
    """A model, and a part of it, that name parameters without weight decay as timm's do; one is marked."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mix = nn.Parameter(torch.randn(4, 8)), nn.Linear(8, 8)

        def no_weight_decay(self):
            return {"tab*"}

        def forward(self, x):
            return self.mix(x + self.table)

    def __init__(self):
        super().__init__()
        self.part, self.stem, self.rates, self.head = self.Part(), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.rates.weight._no_weight_decay = True

    def no_weight_decay(self):
        return {"stem.weight", "absent"}

    def forward(self, x):
        return self.head(self.rates(self.part(self.stem(x))))


def test_what_a_model_excepts_from_decay_has_none_unless_all_has():
    model = Excepting()
    plan = wp.plan(model, torch.zeros(2, 4, 8))
    decay = by_name(plan.param_groups(model, 0.1, "adamw", weight_decay=0.1), "weight_decay")
    assert {name for name, value in decay.items() if value} == {"part.mix.weight", "head.weight"}
    decay = by_name(plan.param_groups(model, 0.1, "adamw", weight_decay=0.1, decay_all=True), "weight_decay")
    assert all(decay.values())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_shrink_by_the_same_factor_at_every_width(optimizer):
    """Wang & Aitchison 2024: lr·wd is what has to stay; measured on a step without gradient."""
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    for width in (32, 256):
        model, plan = planned(model=Block(width).double())
        plan.apply_(model)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        kind = kinds[optimizer](plan.param_groups(model, 0.1, optimizer, 0.5))
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        kind.step()
        for name in ("read.weight", "hidden.weight", "readout.weight"):
            torch.testing.assert_close(dict(model.named_parameters())[name], before[name] * (1 - 0.1 * 0.5))


def test_coupled_decay_keeps_one_value():
    model, plan = planned()
    groups = plan.param_groups(model, 0.1, "adamw", 0.5, independent_decay=False)
    assert {group["weight_decay"] for group in groups} == {0.0, 0.5}
    groups = plan.param_groups(model, 0.1, "adam", 0.5)
    assert {group["weight_decay"] for group in groups} == {0.0, 0.5}


def test_the_table_shows_what_one_step_decays():
    model, plan = planned()
    text = io.StringIO()
    Console(file=text, width=200).print(groups_table(plan.param_groups(model, 0.1, "adamw", 0.5)))
    rows = [line for line in text.getvalue().splitlines() if "hidden.weight" in line]
    assert len(rows) == 1
    assert "0.05 " in rows[0]  # lr·wd
    assert "0.2 " in rows[0]  # the rate: 0.1 · 128/64


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_unknown_optimizers_have_near_matches():
    model, plan = planned()
    with pytest.raises(OptionError, match="did you mean 'adamw'"):
        plan.param_groups(model, 0.1, "adanw")

    class Odd(torch.optim.Optimizer):
        pass

    with pytest.raises(OptionError, match=r"'odd'.*in proportion"):
        plan.param_groups(model, 0.1, Odd)


def test_muon_alone_is_refused_for_what_it_does_not_take():
    model, plan = planned()
    with pytest.raises(UnsupportedError, match=r"'read.weight'.*others=\('adamw'"):
        plan.param_groups(model, 0.1, "muon")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.0}, "lr must be a finite number above 0"),
        ({"lr": math.nan}, "lr must"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number of at least 0"),
        ({"base_width": 0}, "base_width must"),
        ({"width": "wide"}, "width must be 'mup'"),
        ({"optimizer": "rprop", "weight_decay": 0.1}, "rprop has no weight decay"),
    ],
)
def test_values_outside_their_range_are_refused(changes, words):
    model, plan = planned()
    with pytest.raises(OptionError, match=words):
        plan.param_groups(model, **({"lr": 0.1} | changes))


def test_a_plan_for_another_model_and_a_frozen_model_are_refused():
    model, plan = planned()
    with pytest.raises(PlanError, match="does not fit"):
        plan.param_groups(Block(32), 0.1)
    model.requires_grad_(False)
    with pytest.raises(PlanError, match="no trainable parameter"):
        plan.param_groups(model, 0.1)


def test_an_untied_model_is_refused_where_the_plan_ties():
    model = Tied()
    plan = plan_for(model)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.raises(PlanError, match="tied"):
        plan.param_groups(model, 0.1)
