"""The search against plain training loops and closed forms; what it leaves alone; what it says of bad input."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.ranks import on_two_ranks
from tests.rates.small import GRID, data, loss_fn, model_fn
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from wellposed.errors import OptionError, RateError
from wellposed.graphs import trace
from wellposed.methods import plan
from wellposed.plans import draw
from wellposed.random_states import seed_all
from wellposed.rates.answer import Exploration, answer
from wellposed.rates.feed import feeds_of
from wellposed.rates.find import find_max_lr
from wellposed.rates.grid import continued, default_grid, lowest, refined
from wellposed.rates.rate import Conditions, Definition, Point, Rate
from wellposed.rates.search import SearchSettings
from wellposed.rates.transfer import transfer


def search(*args: Any, **options: Any) -> Rate:
    given = (*args, model_fn, loss_fn, data())[: max(len(args), 0)] if args else ()
    model, loss, batches = (*given, *(model_fn, loss_fn, data())[len(given) :])
    given = {"grid": GRID, "seeds": 2, "schedule": "constant", "progress": False, "widen": 0, **options}
    return find_max_lr(model, loss, batches, **given)


def losses(rate: Rate) -> dict[tuple[float, int], float | None]:
    return {(point.rate, index): loss for point in rate.curve for index, loss in enumerate(point.losses)}


def reference(seed: int, rate: float) -> float:
    """Train one run in the plainest way; return the mean loss over all batches at the end."""
    torch.manual_seed(seed)
    model = model_fn()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    batches = data()
    for index in torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)):
        batch = batches[index]
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()
    with torch.no_grad():
        return sum(loss_fn(model, batch).item() for batch in data()) / len(data())


@pytest.mark.parametrize("vectorize", [True, False])
def test_the_curve_equals_plain_training(vectorize: bool) -> None:
    rate = search(vectorize=vectorize, seed=4)
    assert losses(rate) == pytest.approx(
        {(lr, index): reference(4 + index, lr) for lr in GRID for index in range(2)}, rel=1e-10
    )
    best = min(GRID, key=lambda lr: sum(reference(4 + i, lr) for i in range(2)))
    assert best / math.sqrt(10) < rate.value < best * math.sqrt(10)
    assert ("one by one" in rate.reason) is not vectorize
    assert "vectorised" in rate.reason or not vectorize
    assert not rate.warnings
    assert rate.conditions.model_dump() == {
        "optimizer": "sgd",
        "batch_size": 6,
        "steps": 8,
        "training_steps": None,
        "clip": None,
        "schedule": "constant",
        "loss": "loss_fn",
        "inputs": "0: float64[4], 1: int64[]",
    }


# A quadratic of curvature h from w0: SGD multiplies w by 1 - rate * h in each step.
CURVATURE, STEPS = 0.8, 3


class Quadratic(nn.Module):
    def __init__(self, curvature: float = CURVATURE) -> None:
        super().__init__()
        self.weight, self.curvature = nn.Parameter(torch.randn((), dtype=torch.float64)), curvature

    def forward(self, batch: Tensor) -> Tensor:
        return self.curvature / 2 * self.weight**2 + 0 * batch.sum()


def quadratic(curvature: float = CURVATURE, **options: Any) -> Rate:
    return find_max_lr(
        lambda: Quadratic(curvature),
        lambda model, batch: model(batch),
        [torch.zeros(1)] * STEPS,
        **{"seeds": 3, "schedule": "constant", "progress": False, "vectorize": True, **options},
    )


def test_a_quadratic_is_solved() -> None:
    grid = [2.0**k / CURVATURE for k in range(-3, 2)]
    rate = quadratic(grid=grid, target="argmin")
    torch.manual_seed(0)
    start = torch.randn((), dtype=torch.float64).item()
    for point in rate.curve:
        expected = CURVATURE / 2 * start**2 * (1 - point.rate * CURVATURE) ** (2 * STEPS)
        assert point.losses[0] == pytest.approx(expected, rel=1e-12)
    # At the best rate the loss is 0, at half of it 1/64 of the first, at twice of it 1 of the first.
    assert rate.value == pytest.approx((2 ** ((1 / 64 - 1) / (2 * (1 / 64 + 1)))) / CURVATURE, rel=1e-9)
    assert rate.interval == pytest.approx((rate.value, rate.value))
    assert (rate.definition, rate.argmin) == ("argmin", rate.value)


GAP = 1 / 32
FINE = [2.0 ** (GAP * k) / CURVATURE for k in range(-96, 48)]
"""Rates so near to one another that an edge, which lies between two of them, is known to this many octaves."""


def test_the_plateau_of_a_quadratic_is_found() -> None:
    """The loss is (1 - rate·h)^6 of the first: a tenth of the gain is lost where |1 - rate·h| = 0.1^(1/6)."""
    rate = quadratic(grid=FINE)
    low, high = (1 - 0.1 ** (1 / 6)) / CURVATURE, (1 + 0.1 ** (1 / 6)) / CURVATURE
    assert rate.plateau is not None
    assert abs(math.log2(rate.plateau.low / low)) < GAP
    assert abs(math.log2(rate.plateau.high / high)) < GAP
    assert rate.value == pytest.approx(math.sqrt(rate.plateau.low * rate.plateau.high), rel=1e-12)
    assert rate.definition == "plateau"
    assert f"{rate.plateau.high:.4g} (unsafe)" in repr(rate)


def test_gains_count_from_the_loss_without_training() -> None:
    """From half of the first loss on, half of the gain is lost; runs that do no better count as untrained."""
    torch.manual_seed(0)
    start = CURVATURE / 2 * torch.randn((), dtype=torch.float64).item() ** 2
    rate = quadratic(grid=FINE, seeds=1, reference=start / 2)
    assert rate.plateau is not None
    assert abs(math.log2(rate.plateau.low * CURVATURE / (1 - 0.05 ** (1 / 6)))) < GAP


@pytest.mark.parametrize("curvature", [1e-3, 30.0])
def test_a_grid_that_is_too_narrow_is_widened(curvature: float) -> None:
    rate = quadratic(curvature, grid=(0.1, 0.2, 0.4), widen=6)
    tried = [point.rate for point in rate.curve]
    assert tried[0] < 1 / curvature < tried[-1]
    assert np.diff(np.log2(tried)) == pytest.approx(1, abs=1e-9)
    assert rate.argmin is not None
    assert abs(math.log2(rate.argmin * curvature)) <= 0.5  # half a step of the grid
    centre = math.sqrt(1 - 0.1 ** (1 / 3)) / curvature
    assert abs(math.log2(rate.value / centre)) < 1  # both ends lie in the gaps that they are put in
    assert "the grid was extended" in rate.reason
    assert not rate.warnings


def test_widening_ends_and_says_so() -> None:
    rate = quadratic(1e-9, grid=(0.1, 0.2, 0.4), widen=2)
    assert len(rate.curve) == 3 + 2 * 2
    assert rate.argmin == rate.curve[-1].rate
    assert any("at an edge of the grid" in text for text in rate.warnings)
    assert "parabola" not in rate.reason


def test_runs_that_all_diverge_widen_downwards() -> None:
    rate = quadratic(1.0, grid=(1e3, 1e4, 1e5), widen=3)
    assert rate.value < 10
    assert sum(point.mean is None for point in rate.curve) >= 3


def test_runs_that_all_diverge_are_an_error() -> None:
    with pytest.raises(RateError, match=r"every run diverged \(3 learning rates from 1e\+03 to 1e\+05"):
        quadratic(1.0, grid=(1e3, 1e4, 1e5), widen=0)


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_the_parabola_is_exact_for_a_parabola() -> None:
    rates = (0.1, 0.15, 0.4, 1.0)
    found = refined({rate: math.log(rate / 0.2) ** 2 + 1 for rate in rates}, 100)
    assert found == pytest.approx(0.2, rel=1e-12)
    assert refined({0.1: 2.0, 0.2: 1.0, 0.4: 1e30}, 3.0) == refined({0.1: 2.0, 0.2: 1.0, 0.4: None}, 3.0)
    assert refined({0.1: 1.0, 0.2: 2.0, 0.4: 3.0}, 9) == 0.1
    assert refined({0.1: None, 0.2: None}, 9) is None


def test_the_largest_of_equal_rates_is_taken() -> None:
    assert lowest({0.1: 1.0, 0.2: 1.0, 0.4: 2.0}) == 0.2
    assert lowest({0.1: None}) is None


def found_on(*curve: tuple[float, float | None], start: float = 2.3, definition: Definition = "plateau") -> Rate:
    points = tuple(Point(rate=rate, losses=(loss,)) for rate, loss in curve)
    return answer(Exploration(points, (start,), 0), Conditions(optimizer="sgd", steps=9), "alone", [], definition)


def test_a_plateau_that_reaches_an_edge_is_warned_of() -> None:
    inside = found_on((0.01, 2.2), (0.02, 1.91), (0.08, 1.9), (0.16, 2.2))
    assert inside.plateau is not None
    assert 0.01 < inside.plateau.low < 0.02
    assert not inside.warnings
    below = found_on((0.01, 1.92), (0.02, 1.91), (0.08, 1.9), (0.16, 2.2))
    assert ["edge of the grid, 0.01, train nearly" in text for text in below.warnings] == [True]
    both = found_on((0.01, 1.92), (0.02, 1.9), (0.08, 1.91))
    assert ["edge of the grid, 0.01 and 0.08, train" in text for text in both.warnings] == [True]


def test_two_minima_are_one_plateau() -> None:
    """Which of them is lower is often chance."""
    first, second = (
        found_on((0.01, 2.2), (0.02, low), (0.04, 2.1), (0.08, high), (0.16, None))
        for low, high in ((1.9, 1.91), (1.91, 1.9))
    )
    assert first.argmin is not None
    assert second.argmin is not None
    assert second.argmin > 2 * first.argmin
    for found in (first.plateau, second.plateau):
        assert found is not None
        assert found.low < 0.02 < 0.08 < found.high


def test_nothing_gained_leaves_the_argmin() -> None:
    found = found_on((0.01, 2.4), (0.02, 2.35), (0.04, 2.5))
    assert (found.definition, found.plateau, found.value) == ("argmin", None, 0.02)
    assert any("no rate lowered the loss" in text for text in found.warnings)


def test_files_of_before_say_that_they_hold_the_argmin() -> None:
    old = Rate.model_validate_json('{"value": 0.1, "interval": [0.09, 0.2], "reason": "16 learning rates"}')
    assert (old.definition, old.plateau) == ("argmin", None)
    model = model_fn()
    assert transfer(0.1, data()[0][0], base=model, target=model).definition is None


def test_a_grid_is_continued_by_its_own_factor() -> None:
    assert continued((1.0, 2.0, 4.0), (False, True), 2) == pytest.approx((8, 16))
    assert continued((1.0, 2.0, 4.0), (True, False), 2) == pytest.approx((0.25, 0.5))
    assert continued((1.0, 2.0), (True, True), 1) == pytest.approx((0.5, 4.0))
    assert continued((1.0, 2.0), (False, False), 1) == ()


def test_a_short_search_takes_40_steps_of_one_seed() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(6, 4).double(), torch.randint(0, 3, (6,))) for _ in range(41)]
    rate = search(model_fn, loss_fn, batches, steps="short", seeds=None)
    assert (rate.conditions.steps, len(rate.curve[0].losses), rate.interval) == (40, 1, None)
    with pytest.raises(OptionError, match="or 'short', received 'long'"):
        search(steps="long")


def test_default_grids_are_spaced_alike() -> None:
    for family in ("sgd", "momentum", "adam", "adamw", "lion"):
        assert np.diff(np.log2(default_grid(family))) == pytest.approx(0.75)
        assert len(default_grid(family)) >= 16


# ---- batches --------------------------------------------------------------------------------------------------------


def loader(**options: Any) -> DataLoader[Any]:
    x = torch.cat([batch[0] for batch in data()])
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=6, **options)


GIVEN = {
    "list": data,
    "iterator": lambda: iter(data()),
    "loader": lambda: loader(shuffle=True),
    "loader with a generator": lambda: loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "function": lambda: lambda seed: data()[seed:] + data()[:seed],
}


@pytest.mark.parametrize("kind", GIVEN)
def test_every_seed_has_an_order_of_its_own(kind: str) -> None:
    feeds = feeds_of(GIVEN[kind](), 8, (0, 1, 2), torch.device("cpu"))
    read = [[batch[0] for batch in feed] for feed in feeds.values()]
    for feed, batches in zip(feeds.values(), read, strict=True):  # the same again, whatever was read in between
        assert all(torch.equal(batch[0], before) for batch, before in zip(feed, batches, strict=True))
    for one, other in itertools.combinations(read, 2):
        assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    rows = [sorted(torch.cat(batches).sum(1).tolist()) for batches in read]
    assert rows[0] == rows[1] == rows[2] == pytest.approx(sorted(torch.cat([x for x, _ in data()]).sum(1).tolist()))


@pytest.mark.slow
def test_one_order_for_all_seeds_is_warned_of() -> None:
    told = "all seeds have the same batches"
    assert any(told in text for text in search(model_fn, loss_fn, loader()).warnings)
    for batches in (loader(shuffle=True), data(), loader(shuffle=True, generator=torch.Generator())):
        assert not search(model_fn, loss_fn, batches).warnings
    assert not search(model_fn, loss_fn, loader(), seeds=1).warnings


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(OptionError, match="batches or a function of the seed, received int"):
        search(model_fn, loss_fn, 3)
    with pytest.raises(RateError, match=r"batches\(seed\) must return batches, not int"):
        search(model_fn, loss_fn, lambda seed: seed)


@pytest.mark.parametrize("generator", [False, True])
def test_every_ensemble_sees_the_same_batches(generator: bool) -> None:
    """Shuffled by the global generator or by one of the loader's own; dropout draws numbers in between."""

    def build() -> nn.Module:
        return nn.Sequential(model_fn(), nn.Dropout(0.5))

    own = torch.Generator().manual_seed(1) if generator else None
    shuffled = loader(shuffle=True, generator=own)
    before = own.get_state() if own is not None else None
    seen: list[list[Tensor]] = []

    def watching(model: nn.Module, batch: Any) -> Tensor:
        seen[-1].append(batch[0])
        return loss_fn(model, batch)

    class Watched:
        """The loader, noting where an iteration begins."""

        generator = own

        def __len__(self) -> int:
            return len(shuffled)

        def __iter__(self) -> Iterator[Any]:
            seen.append([])
            return iter(shuffled)

    search(build, watching, Watched(), vectorize=False, seeds=1, probes=1)
    runs = [torch.stack(batches[:8]) for batches in seen if len(batches) >= 8]
    assert len(runs) == len(GRID)
    assert all(torch.equal(run, runs[0]) for run in runs)
    assert not torch.equal(runs[0], torch.stack([batch[0] for batch in data()]))
    if own is not None:
        assert torch.equal(own.get_state(), before)


@pytest.mark.slow
def test_several_ensembles_give_the_same_as_one() -> None:
    shuffled = loader(shuffle=True)
    whole, parts = search(model_fn, loss_fn, shuffled), search(model_fn, loss_fn, shuffled, memory=1, vectorize=True)
    assert losses(whole) == pytest.approx(losses(parts), rel=1e-12)


def test_an_iterator_is_kept() -> None:
    endless = itertools.cycle(data())
    assert losses(search(model_fn, loss_fn, endless, steps=8)) == losses(search())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from data(5)


@pytest.mark.parametrize(
    "short", [data(5), iter(data(5)), DataLoader(Stream(), batch_size=None)], ids=["list", "iterator", "stream"]
)
def test_few_batches_are_repeated(short: Any) -> None:
    (feed,) = feeds_of(short, 12, (0,), torch.device("cpu")).values()
    read = [batch[0] for batch in feed]
    assert len(read) == 12
    assert all(torch.equal(read[index], read[index % 5]) for index in range(12))


def test_that_batches_are_repeated_is_said() -> None:
    assert "on 8 batches, repeated" in search(steps=9).reason
    assert "repeated" not in search(steps=8).reason


class Spent:
    """Gives its batches once, though it is no iterator."""

    def __init__(self) -> None:
        self.left = data(5)

    def __iter__(self) -> Iterator[Any]:
        while self.left:
            yield self.left.pop()


@pytest.mark.parametrize(
    ("batches", "steps", "message"),
    [
        (DataLoader(Stream(), batch_size=None), None, "give steps="),
        (iter(data()), None, "give steps="),
        ([], None, "not one batch"),
        ([], 3, "not one batch"),
        (iter([]), 3, "not one batch"),
        (Spent(), 6, r"ran out after \d, 6 are needed, and what gives them cannot be read again"),
        (data()[0], None, "received one batch, which does not say how many steps to take on it: give steps="),
    ],
)
def test_batches_that_run_out_are_an_error(batches: Any, steps: int | None, message: str) -> None:
    with pytest.raises((RateError, OptionError), match=message):
        search(model_fn, loss_fn, batches, steps=steps)


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_one_batch_is_taken_in_every_step(kind: str) -> None:
    x, y = data()[0]
    one: Any = {"tuple": (x, y), "list": [x, y], "dict": {0: x, 1: y}}[kind]
    given = search(model_fn, loss_fn, one, steps=4)
    assert losses(given) == losses(search(model_fn, loss_fn, [(x, y)] * 4))
    assert given.conditions.batch_size == 6


def test_tensors_alike_in_a_list_are_batches() -> None:
    feed = feeds_of([x for x, _ in data(2)], None, (0,), torch.device("cpu"))[0]
    assert feed.steps == 2


# ---- what is left alone ---------------------------------------------------------------------------------------------


class Remembering(nn.Module):
    """Keeps what it was given last, as caches do."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("vectorize", [True, False])
def test_the_model_is_left_as_it_was(vectorize: bool, failing: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3), Remembering()).double()
    model[0].weight.requires_grad_(False)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    model.register_forward_hook(lambda module, args, output: None)
    calls = itertools.count()

    def loss(model: Any, batch: Any) -> Tensor:
        if failing and next(calls) == 20:
            raise KeyError("the loss function's own error")
        return loss_fn(model, batch)

    before, held = copy.deepcopy(model), [*model.parameters(), *model.buffers()]
    hooks = dict(model._forward_hooks)
    seed_all(17)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    if failing:
        # Enough stacked passes for the error to come while training.
        with pytest.raises(KeyError, match="own error"):
            search(lambda: model, loss, data(20), vectorize=vectorize)
    else:
        search(lambda: model, loss, vectorize=vectorize)
    assert [*map(id, (*model.parameters(), *model.buffers()))] == [*map(id, held)]
    for (name, tensor), other in zip(model.state_dict().items(), before.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), name
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in before.parameters()]
    assert torch.equal(model[3].weight.grad, torch.ones_like(model[3].weight))
    assert sum(parameter.grad is not None for parameter in model.parameters()) == 1
    assert dict(model._forward_hooks) == hooks
    assert model[4].last is None
    assert model.training
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002
    assert random.getstate() == states[2]


# ---- models ---------------------------------------------------------------------------------------------------------


def test_a_plan_is_drawn_anew_for_each_seed() -> None:
    made = plan(trace(model_fn(), torch.zeros(6, 4, dtype=torch.float64)))
    seen: list[dict[str, Tensor]] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        seen.append({name: tensor.detach().clone() for name, tensor in model.named_parameters()})
        return loss_fn(model, batch)

    search(model_fn, loss, initialize=made, vectorize=False)
    for seed in range(2):
        expected = {name: values.double() for name, values in draw(made, seed=made.seed + seed).items()}
        assert any(all(torch.equal(one[name], expected[name]) for name in expected) for one in seen)


def test_weights_are_those_that_the_function_initialize_sets() -> None:
    def initialize(model: nn.Module) -> None:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)

    with pytest.raises(RateError, match=r"the loss is 0\.\d+ at every rate"):
        search(model_fn, lambda model, batch: (model[2].weight * 0).sum() + 0.5, initialize=initialize)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if y.mean() > 0 else y * 2


def test_a_model_that_cannot_be_stacked_is_trained_one_by_one() -> None:
    found = search(Branching)
    assert "one by one" in found.reason
    assert any("vmap cannot follow" in text for text in found.warnings)
    with pytest.raises(RateError, match=r"vectorize=True, but the runs cannot be stacked: torch.func.vmap"):
        search(Branching, vectorize=True)


def test_any_other_optimizer_is_trained_one_by_one() -> None:
    found = search(optimizer=torch.optim.RMSprop, grid=(1e-3, 1e-2, 1e-1))
    assert found.conditions.optimizer == "rmsprop"
    assert any("RMSprop has no vectorised steps" in text for text in found.warnings)


def test_a_noisy_loss_is_warned_of() -> None:
    count = itertools.count()

    def noisy(model: nn.Module, batch: Any) -> Tensor:
        return loss_fn(model, batch) * (1 + next(count) % 3)

    assert any("not deterministic" in text for text in search(model_fn, noisy).warnings)


def test_a_stack_that_is_slower_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellposed.rates.search.stacking_cost", lambda *args: 1.9)
    found = search()
    assert "one by one (a stack takes 1.9 times as long here)" in found.reason
    assert not found.warnings
    assert losses(found) == pytest.approx(losses(search(vectorize=True)), rel=1e-10)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grid": (0.1, 0.2)}, OptionError, "at least three different positive"),
        ({"grid": (0.1, 0.2, math.nan)}, OptionError, "at least three different positive"),
        ({"grid": (0.1, 0.2, 0.2)}, OptionError, "at least three different positive"),
        ({"seeds": 0}, OptionError, "seeds=0"),
        ({"steps": 0}, OptionError, "steps=0"),
        ({"bound": math.nan}, OptionError, "bound=nan"),
        ({"schedule": "cosin"}, OptionError, "did you mean 'cosine'"),
        ({"optimizer": "sdg"}, OptionError, "did you mean 'sgd'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        search(**options)


def test_model_functions_that_make_no_model_are_refused() -> None:
    with pytest.raises(RateError, match=r"must return an nn.Module, not int"):
        search(lambda: 3)
    with pytest.raises(RateError, match=r"Tanh has no parameters"):
        search(nn.Tanh)
    widths = itertools.count(2)
    with pytest.raises(RateError, match=r"another Linear for seed 1"):
        search(lambda: nn.Linear(4, next(widths)).double())


def test_losses_that_are_nan_at_the_start_are_an_error() -> None:
    with pytest.raises(RateError, match=r"not finite before the first step \(seed 0\)"):
        search(model_fn, lambda model, batch: loss_fn(model, batch) * math.nan)


# ---- several processes ----------------------------------------------------------------------------------------------


def _on_half(journal: str, rank: int) -> list[str]:
    """Return what the searches of one of two ranks say, each on its half of every batch."""
    halves = [tuple(part[3 * rank : 3 * rank + 3] for part in batch) for batch in data()]
    told = []
    for vectorize in (True, False):
        options = {"vectorize": vectorize, "schedule": "constant", "journal": journal + str(vectorize)}
        told.append(find_max_lr(model_fn, loss_fn, halves, grid=GRID, seeds=2, **options).model_dump_json())
    told.append(str(find_max_lr(model_fn, loss_fn, iter(halves[: 8 - rank]), steps=8).conditions.steps))
    try:
        find_max_lr(model_fn, loss_fn, iter(halves[: 8 * (1 - rank)]), steps=8)
    except ValueError as error:
        told.append(str(error))
    return told


@pytest.mark.slow
def test_two_ranks_agree_with_one(tmp_path: Path) -> None:
    first, second = on_two_ranks(partial(_on_half, str(tmp_path / "journal")), tmp_path)
    assert first == second
    for line, vectorize in zip(first[:2], (True, False), strict=True):
        together = Rate.model_validate_json(line)
        alone = search(vectorize=vectorize, widen=3)
        assert together.conditions == alone.conditions
        assert together.value == pytest.approx(alone.value, rel=1e-9)
        assert losses(together) == pytest.approx(losses(alone), rel=1e-9)
    assert first[2] == "8"
    assert "not one batch" in first[3]


def test_settings_are_an_object_or_fields() -> None:
    chosen = SearchSettings(vectorize=False, widen=0, probes=2)
    given = {"grid": (0.01, 0.02, 0.04), "seeds": 1, "progress": False}
    rate = find_max_lr(model_fn, loss_fn, data(), settings=chosen, **given)
    assert rate == find_max_lr(model_fn, loss_fn, data(), vectorize=False, widen=0, probes=2, **given)
    assert "one by one" in rate.reason
    assert "vectorised" in find_max_lr(model_fn, loss_fn, data(), settings=chosen, vectorize=True, **given).reason
    with pytest.raises(TypeError, match=r"SearchSettings.* unexpected keyword argument 'widden'"):
        find_max_lr(model_fn, loss_fn, data(), widden=0)


def test_processes_without_a_group_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert any("no process group" in text for text in search().warnings)
