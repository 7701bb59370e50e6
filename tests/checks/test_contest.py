"""Starts compared by training: which one is better, what is no difference, what diverges."""

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import nn

import wellposed as wp
from wellposed.checks.contest import Contest, Entrant
from wellposed.errors import OptionError, RateError

GRID = (0.03, 0.1, 0.3, 1.0)


def deep() -> nn.Module:
    """PyTorch's own initialisation loses the signal on the way through 20 layers."""
    layers = [layer for _ in range(20) for layer in (nn.Linear(16, 16), nn.Tanh())]
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *layers, nn.Linear(16, 3))


def shallow() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def batches(steps=30):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps, 32, 8, generator=generator)
    return [(part, part[:, :3].argmax(1)) for part in x]


def compared(model, starts=("own", "autoinit"), given=None, **options):
    given = batches() if given is None else given
    return wp.compare_starts(model, loss, given, starts, **{"grid": GRID, "seeds": 4, "progress": False, **options})


@pytest.mark.slow
def test_a_start_that_trains_beats_one_that_does_not():
    found = compared(deep, seeds=8)  # losses of a deep net differ much, also with the way that its runs are stacked
    assert found["autoinit"].mean < found["own"].mean - 0.2
    assert found.p_value("own", "autoinit") < 0.05
    assert "autoinit reaches a lower loss than own" in found.summary()


@pytest.mark.slow
def test_the_same_start_twice_is_no_difference():
    plan = wp.plan(shallow(), torch.zeros(4, 8))
    found = compared(shallow, {"one": plan, "other": plan})
    assert found["one"].losses == found["other"].losses
    assert found.p_value("one", "other") == 1.0
    assert "do not differ significantly" in found.summary()


@pytest.mark.slow
def test_an_iterator_serves_every_start():
    starts = ("autoinit", "kaiming")
    from_a_list = compared(shallow, starts, batches()[:20])
    assert compared(shallow, starts, iter(batches()), steps=20) == from_a_list
    assert from_a_list.steps == 20


@pytest.mark.slow
def test_each_start_is_taken_at_its_own_best_rate():
    found = compared(shallow, ("own", "lecun"), widen=0)
    for entrant in found.entrants:
        plan = None if entrant.name == "own" else wp.plan(shallow(), torch.zeros(32, 8), method="lecun")
        curve = wp.rates.find_max_lr(
            shallow, loss, batches(), grid=GRID, seeds=4, widen=0, initialize=plan, progress=False
        ).curve
        best = min(curve, key=lambda point: math.inf if point.mean is None else point.mean)
        assert (entrant.rate, entrant.losses) == (best.rate, best.losses)


def test_the_p_value_is_that_of_welchs_test():
    one, other = (0.5, 0.7, 0.65, 0.58), (0.8, 0.72, 0.9)
    found = Contest((Entrant("a", 0.1, one), Entrant("b", 0.1, other)), 10, 4)
    assert found.p_value("a", "b") == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue, rel=1e-12)


@pytest.mark.slow
def test_divergence_is_an_outcome():
    def exploding():
        made = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(1e25)
        return made

    found = compared(exploding)
    assert not found["own"].losses
    assert found["autoinit"].losses
    assert "own diverged at every rate, autoinit did not" in found.summary()


@pytest.mark.slow
def test_a_model_that_seeds_itself_is_told():
    def seeded():
        torch.manual_seed(0)
        return shallow()

    found = compared(seeded)
    assert any("sets a seed of its own" in text for text in found["own"].warnings)
    assert not found["autoinit"].warnings


@pytest.mark.parametrize(
    ("starts", "options"),
    [("own", {}), (("own",), {}), (("own", "own"), {}), (("own", "autoinit"), {"seeds": 1}), (("own", "no-such"), {})],
)
def test_bad_input_is_refused(starts, options):
    with pytest.raises(OptionError):
        compared(shallow, starts, **options)


def test_a_contest_without_batches_is_refused():
    with pytest.raises(OptionError, match="not one batch"):
        compared(shallow, given=iter(()))


def test_a_training_that_cannot_run_raises():
    with pytest.raises(RateError, match="depends on no parameter"):
        compared(lambda: shallow().requires_grad_(False), ("own", "xavier"))


@pytest.mark.slow
def test_the_generators_are_left_alone():
    state = torch.get_rng_state()
    compared(shallow, seeds=2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_every_pair_is_named():
    names = ("own", "kaiming", "lecun")
    text = compared(shallow, names, seeds=2).summary()
    for one, other in itertools.combinations(names, 2):
        assert any(one in line and other in line for line in text.splitlines()[4:])
