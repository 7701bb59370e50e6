"""The best rate over the sizes of a family: a shift known in closed form, ways that fail, ends, errors, pictures."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wellposed as wp
from wellposed.checks.family import planned_coordinates
from wellposed.errors import DivergedError, OptionError, RateError
from wellposed.rates import TransferCheck

RATES = [2.0**octave for octave in range(-6, 1)]


class Quadratic(nn.Module):
    """size/2 · (w - target)²: a step of SGD depends on rate · size alone, so the best rate goes as 1/size exactly."""

    def __init__(self, size):
        super().__init__()
        self.size, self.w = size, nn.Parameter(torch.randn(40) + 3.0)

    def forward(self, target):
        return self.size / 2 * (self.w - target).square().sum()


def quadratic_loss(model, target):
    return model(target)


def targets(count=40):
    return list(torch.randn(count, 40, generator=torch.Generator().manual_seed(1)))


def ignorant(model, size, lr, batch):
    return torch.optim.SGD(model.parameters(), lr=lr)


def right(model, size, lr, batch):
    return torch.optim.SGD(model.parameters(), lr=lr / size)


def checked(ways, sizes=(1, 3, 6), **options):
    options = {"rates": RATES, "axis": "curvature", "progress": False, **options}
    return wp.check_transfer(Quadratic, sizes, quadratic_loss, options.pop("batches", targets()), ways, **options)


@pytest.fixture(scope="module")
def found():
    return checked({"right": right, "ignorant": ignorant}, rates=[2.0**k for k in range(-8, -2)], seeds=3)


@pytest.mark.slow
def test_a_known_shift_is_found(found):
    way = found["ignorant"]
    low, high = way.interval
    assert low <= -math.log2(6) <= high
    assert way.shift == pytest.approx(-math.log2(6), abs=0.15)
    assert high - low < 0.6
    assert way.verdict == "moves"
    middle = way.curves[1].rate / way.curves[0].rate
    assert math.log2(middle) == pytest.approx(-math.log2(3), abs=0.15)


@pytest.mark.slow
def test_the_way_that_is_right_carries(found):
    way = found["right"]
    assert way.shift == pytest.approx(0.0, abs=0.1)
    assert way.verdict == "carries"
    assert way.interval[0] <= 0.0 <= way.interval[1]
    assert way.carried_loss == pytest.approx(way.own_loss, rel=0.05)


def test_a_way_that_ignores_the_size_pays_at_the_carried_rate(found):
    way = found["ignorant"]
    assert way.carried_loss > 1.1 * way.own_loss >= 1.1 * way.best_loss
    assert way.best_loss == pytest.approx(found["right"].best_loss, rel=0.2)


def test_the_carried_rate_is_trained_and_not_interpolated(found):
    for way in found.ways.values():
        assert [curve.carried.rate for curve in way.curves] == [way.rate] * 3
        for curve in way.curves:
            assert way.rate not in [point.rate for point in curve.points]


def test_losses_are_those_of_plain_training(found):
    """One run by hand: the schedule, the seed's own order, and the mean over the last tenth."""
    curve = found["ignorant"].curves[1]
    point, seed, steps = curve.points[2], 2, 40
    torch.manual_seed(seed)
    w = (torch.randn(40) + 3.0).double()
    order = torch.randperm(steps, generator=torch.Generator().manual_seed(seed))
    losses = []
    for step, index in enumerate(order.tolist()):
        target = targets()[index].double()
        losses.append(float(3 / 2 * (w - target).square().sum()))
        done = step / steps
        w = w - point.rate * min(done / 0.1, (1 - done) / 0.9) * 3 * (w - target)
    assert point.losses[seed] == pytest.approx(sum(losses[-4:]) / 4, rel=1e-4)


def test_the_answer_is_one_line_a_summary_and_a_page(found):
    said = str(found)
    assert "\n" not in said
    assert said.startswith("from curvature 1 to 6: right: best rate moves ")
    assert re.search(r"ignorant: best rate moves -2\.\d octaves \[-2\.\d, -2\.\d\], moves$", said)
    assert "at the carried rate" in found.summary()
    assert "larger is neither better" in found.comparison("right") or "larger is worse" in found.comparison("right")
    assert found.table().row_count == 6
    assert repr(found).startswith(
        "Transfer over curvature 1, 3, 6: 40 steps of adamw, 3 seeds, schedule warmup_linear;"
    )
    assert "training loss, mean over the last 4 steps" in repr(found)


def test_json_gives_it_back(found):
    assert TransferCheck.from_json(found.to_json()) == found


def test_the_picture_has_a_panel_for_each_way_and_a_curve_for_each_size(found, tmp_path):
    found.save(tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    tag = "{http://www.w3.org/2000/svg}"
    texts = [text.text for text in root.iter(f"{tag}text")]
    assert texts.count("right") == texts.count("ignorant") == 1
    assert {"curvature 1", "curvature 3", "curvature 6", "learning rate, log₂", "training loss"} <= set(texts)
    assert len(list(root.iter(f"{tag}polyline"))) == 6
    dots = [circle for circle in root.iter(f"{tag}circle") if circle.get("r") == "5"]
    places = [float(dot.get("cx")) for dot in dots]
    assert places[0] - places[2] > 3 * abs(places[3] - places[5]) or places[3] - places[5] > 3 * abs(
        places[0] - places[2]
    )
    width, height = float(root.get("width")), float(root.get("height"))
    for text in root.iter(f"{tag}text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height


@pytest.mark.slow
def test_names_of_others_are_written_out_in_pictures():
    hostile = "<script>&\x1b[31m"
    drawn = checked({hostile: right}, sizes=(1, 2)).figure()
    assert "<script>" not in drawn
    assert "\x1b" not in drawn
    ElementTree.fromstring(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("octaves", [range(-16, -10), range(6)])
def test_rates_are_continued_until_the_valley_is_inside(octaves):
    found = checked({"right": right}, sizes=(1, 2), rates=[2.0**k for k in octaves], widen=6, seeds=3)
    for curve in found["right"].curves:
        assert curve.open == ""
        assert min(curve.losses) < 2.0**-4 < curve.rate < 2.0**0 < max(curve.losses)
    assert not found.warnings


@pytest.mark.slow
def test_an_end_that_stays_open_is_a_bound():
    """The small size's valley is inside, that of the large one below the rates: the shift is at most what is seen."""
    bound = checked({"ignorant": ignorant}, sizes=(1, 24), rates=[2.0**k for k in range(-6, 4)], widen=0)
    way = bound["ignorant"]
    assert way.curves[0].open == ""
    assert way.curves[1].open == "below"
    assert way.interval[0] is None
    assert way.shift > -math.log2(24)
    assert "moves by at most -" in str(bound)
    assert "≤" in repr(bound)
    (warning,) = [text for text in bound.warnings if "curvature 24" in text]
    assert "end inside of the valley (below)" in warning
    assert "give further rates, or increase widen" in warning


@pytest.mark.slow
def test_runs_that_all_diverge_are_an_error():
    def wild(model, size, lr, batch):
        return torch.optim.SGD(model.parameters(), lr=lr * (1e12 if size == 3 else 1))

    message = (
        r"wild, curvature 3: every run of seed 0 diverged \(\d+ learning rates from .* to .*\): give smaller rates"
    )
    with pytest.raises(DivergedError, match=message):
        checked({"wild": wild}, widen=1)


@pytest.mark.slow
def test_a_run_that_diverges_at_the_carried_rate_is_told():
    found = checked({"ignorant": ignorant}, sizes=(1, 100))
    way = found["ignorant"]
    assert way.carried_loss == math.inf
    assert way.worsening is None
    assert "runs diverge at the carried rate" in found.comparison("ignorant")
    assert "diverged" in repr(found)
    assert TransferCheck.from_json(found.to_json()) == found
    assert "diverged" in found.figure()


def test_a_loss_that_no_rate_lowers_is_an_error():
    with pytest.raises(RateError, match=r"right, curvature 1: no rate lowers the loss below 0\.001.*right reference="):
        checked({"right": right}, reference=0.001, widen=1)


@pytest.mark.slow
def test_a_journal_goes_on(tmp_path):
    calls = []

    def counted(model, target):
        calls.append(None)
        return model(target)

    def run(sizes):
        calls.clear()
        options = {"rates": RATES, "journal": tmp_path, "progress": False, "vectorize": False}
        return wp.check_transfer(Quadratic, sizes, counted, targets(10), {"a/b": right}, **options), len(calls)

    first, all_calls = run((1, 2))
    again, few = run((1, 2))
    assert again == first
    assert few < all_calls / 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_b-size-1.jsonl", "a_b-size-2.jsonl"]
    with pytest.raises(RateError, match=r"journal of another search: .*steps was 10 and is 8"):
        wp.check_transfer(
            Quadratic, (1, 2), counted, targets(8), {"a/b": right}, rates=RATES, journal=tmp_path, progress=False
        )


@pytest.mark.slow
def test_held_out_batches_are_taken_in_evaluation_mode():
    class Modal(Quadratic):
        def forward(self, target):
            return super().forward(target) + (0.0 if self.training else -1000.0)

    held = targets(3)
    found = wp.check_transfer(
        Modal, (1, 2), quadratic_loss, targets(), {"right": right}, rates=RATES, held_out=held, progress=False
    )
    assert found["right"].best_loss < -500.0
    assert found.loss == "loss of 3 held-out batches, after the last step"


@pytest.mark.slow
def test_each_seed_has_an_order_or_batches_of_its_own():
    seen = {}

    def spying(model, target):
        seen.setdefault(int(target[0] * 1000), None)
        return model(target)

    options = {"rates": RATES, "progress": False, "widen": 0, "refine": 0, "vectorize": False, "steps": 5}
    wp.check_transfer(Quadratic, (1, 2), spying, targets(5), {"right": right}, **options)
    assert len(seen) == 5
    seen.clear()
    given = []
    wp.check_transfer(
        Quadratic,
        (1, 2),
        spying,
        lambda seed: given.append(seed) or [batch + seed for batch in targets(5)],
        {"right": right},
        seeds=2,
        seed=4,
        **options,
    )
    assert given == [4, 5]
    assert len(seen) == 10


@pytest.mark.slow
def test_seeds_that_are_all_the_same_are_told():
    def seeded(size):
        torch.manual_seed(0)
        return Quadratic(size)

    found = wp.check_transfer(
        seeded, (1, 2), quadratic_loss, lambda seed: targets(), {"right": right}, rates=RATES, progress=False
    )
    assert any("every seed gives the same losses" in text for text in found.warnings)


# Models with named ways.

X = torch.randn(60, 32, 12, generator=torch.Generator().manual_seed(3))
TEACHER = torch.randn(12, 4, generator=torch.Generator().manual_seed(4))
BATCHES = [(x, (x @ TEACHER).argmax(1)) for x in X]


def mlp(width):
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.slow
def test_mup_carries_over_width_where_one_rate_for_all_does_not():
    ways = {"own": "own", "mup": {"method": "mup", "base_width": 16}}
    found = wp.check_transfer(mlp, (16, 64, 256), loss, BATCHES, ways, axis="width", progress=False)
    assert found["own"].shift < -1.0
    assert abs(found["mup"].shift) < abs(found["own"].shift) - 0.7
    assert found["own"].verdict == "moves"
    assert "wider" in found.comparison("mup")


def test_named_ways_draw_and_step_as_plans_say():
    """The optimizer that a named way makes, against groups made by hand."""
    kept = []

    class Spy(torch.optim.AdamW):
        def __init__(self, params, lr, **options):
            super().__init__(params, lr=lr, **options)
            kept.append([(g["lr"] / lr, g["weight_decay"], len(g["params"]), g["betas"]) for g in self.param_groups])

    options = {"rates": RATES, "progress": False, "steps": 4, "optimizer": Spy, "vectorize": False, "widen": 0}
    options["optimizer_options"] = {"weight_decay": 0.1, "betas": (0.9, 0.95)}
    ways = {"mup": {"method": "mup", "base_width": 16, "scheme": "lecun"}}
    with pytest.raises(RateError, match="no rate lowers"):
        wp.check_transfer(mlp, (16, 64), loss, BATCHES, ways, reference=0.0, refine=0, **options)
    plan = wp.plan(mlp(16), X[0], method="mup", scheme="lecun")
    groups = plan.param_groups(mlp(16), 1.0, Spy, 0.1, base_width=16)
    assert kept[0] == [(g["lr"], g["weight_decay"], len(g["params"]), (0.9, 0.95)) for g in groups]


@pytest.mark.slow
def test_models_and_random_numbers_stay_as_they_were():
    models = {size: Quadratic(size) for size in (1, 2)}
    before = {size: model.w.detach().clone() for size, model in models.items()}
    torch.manual_seed(11)
    state = torch.get_rng_state()

    def drawing(model, size, lr, batch):
        nn.init.normal_(model.w, mean=3.0)
        return right(model, size, lr, batch)

    wp.check_transfer(
        models.__getitem__, (1, 2), quadratic_loss, targets(10), {"drawing": drawing}, rates=RATES, progress=False
    )
    assert torch.equal(torch.get_rng_state(), state)
    for size, model in models.items():
        assert torch.equal(model.w, before[size])
        assert model.w.grad is None


@pytest.mark.slow
def test_stacked_and_single_runs_agree():
    def drawing(model, size, lr, batch):
        model.w.data.mul_(1.5).add_(torch.randn(40))
        return right(model, size, lr, batch)

    one, other = (checked({"drawing": drawing}, sizes=(1, 2), vectorize=way) for way in (True, False))
    for a, b in zip(one["drawing"].curves, other["drawing"].curves, strict=True):
        assert a.rates == pytest.approx(b.rates, rel=1e-4)


@pytest.mark.parametrize(
    ("ways", "options", "message"),
    [
        ((), {}, "ways must hold at least one"),
        (("own", "own"), {}, "each once"),
        (("mpu",), {}, "mpu.*did you mean 'mup'"),
        ({"a": {"base_width": 3}}, {}, "way 'a' is a mapping without 'method'"),
        ({"a": {"method": "own", "x": 1}}, {}, "way 'a' leaves the model as it is: it takes no options"),
        (
            {"a": {"method": "mup", "base_wdth": 1}},
            {},
            "'base_wdth' of way 'a' is no .*did you mean 'base_width'",
        ),
        ({"a": 3}, {}, "way 'a' must be 'own', a method's name, .* received int"),
        ({"a": right}, {"optimizer": "adamv"}, "no optimizer 'adamv' in torch.optim.* did you mean"),
        (
            {"a": right},
            {"optimizer": 3},
            "a name, a class, a partial of one or an instance, not 3",
        ),
        (
            {"a": right},
            {"optimizer": torch.optim.Rprop, "optimizer_options": {"weight_decay": 0.1}},
            "Rprop has no weight decay, received weight_decay=0.1",
        ),
        ({"a": right}, {"seeds": 1}, "seeds must be an integer of at least 2"),
        ({"a": right}, {"rates": [0.1, 0.2, 0.3, 0.4]}, "rates must hold at least five different positive"),
        ({"a": right}, {"sizes": (2, 2)}, "curvatures must hold at least two different ones"),
        ({"a": right}, {"sizes": (2, 0)}, "every curvature must be an integer of at least 1, received 0"),
        ({"a": right}, {"confidence": 1.0}, "confidence must be a number between 0 and 1"),
        ({"a": right}, {"tolerance": -1.0}, "tolerance must be"),
        ({"a": right}, {"held_out": []}, "held_out has no batches"),
        ({"a": right}, {"batches": 3}, "batches must be batches or a function of the seed, received int"),
        ({"a": right}, {"widen": -1}, "widen must be an integer of at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(ways, options, message):
    with pytest.raises(OptionError, match=message):
        checked(ways, **options)


def test_ways_and_functions_that_return_something_else_are_named():
    with pytest.raises(RateError, match=r"way 'none' must return an optimizer .* not NoneType"):
        checked({"none": lambda model, size, lr, batch: None})

    def by_rate(model, size, lr, batch):
        nn.init.constant_(model.w, lr)
        return right(model, size, lr, batch)

    with pytest.raises(RateError, match=r"way 'by_rate' draws 'w' otherwise .* and by no rate"):
        checked({"by_rate": by_rate})
    with pytest.raises(RateError, match=r"batches\(seed\) must return batches, not int"):
        checked({"right": right}, batches=lambda seed: 3)
    with pytest.raises(RateError, match=r"model_fn must return an nn\.Module, not int"):
        wp.check_transfer(lambda size: 3, (1, 2), quadratic_loss, targets(), {"right": right}, rates=RATES)
    with pytest.raises(RateError, match="not one batch"):
        checked({"right": right}, batches=[])


@pytest.mark.slow
def test_an_optimizer_needs_groups_and_steps_alone(found):
    class Halves:
        """Steps with each of two optimizers, as Muon and another for the rest."""

        def __init__(self, optimizer):
            self.optimizer, self.param_groups = optimizer, optimizer.param_groups

        def step(self):
            self.optimizer.step()

    alone = checked(
        {"right": lambda *given: Halves(right(*given))}, sizes=(1, 3), rates=[2.0**k for k in range(-8, -2)], seeds=3
    )["right"]
    for mine, theirs in zip(alone.curves, found["right"].curves[:2], strict=True):
        for rate, loss in theirs.losses.items():
            assert mine.losses[rate] == (None if loss is None else pytest.approx(loss, rel=1e-5))


@pytest.mark.slow
def test_the_coordinate_check_takes_a_way_by_name():
    options = {"axis": "width", "optimizer": "sgd", "lr": 0.1, "seeds": 8}
    assert planned_coordinates(mlp, (32, 64, 128), loss, BATCHES[0], way="mup", **options).ok
    assert not planned_coordinates(mlp, (32, 64, 128), loss, BATCHES[0], way="autoinit", **options).ok


def test_the_coordinate_check_tells_ways_the_size():
    sizes = []

    def way(model, size, lr, batch):
        sizes.append(size)
        return torch.optim.SGD(model.parameters(), lr=lr)

    planned_coordinates(mlp, np.array([16, 8]), loss, BATCHES[0], way=way, seeds=2, steps=1)
    assert sizes == [8, 8, 16, 16]


@pytest.mark.slow
def test_a_stream_is_read_as_far_as_the_steps_go():
    def stream():
        while True:
            yield from targets(10)

    found = checked({"right": right}, sizes=(1, 2), batches=stream(), steps=10)
    assert found.steps == 10
    assert (
        found["right"].curves[0].rates
        == checked({"right": right}, (1, 2), batches=targets(10))["right"].curves[0].rates
    )


@pytest.mark.slow
def test_one_degree_of_freedom_is_told():
    few = checked({"right": right}, sizes=(1, 2))
    assert few.warnings == (
        "two sizes and two seeds leave one degree of freedom, and intervals several times as wide as with a third size "
        "or seed",
    )
    assert few.summary().endswith("warning: " + few.warnings[0])


@pytest.mark.slow
def test_groups_are_told_the_eps_that_they_scale():
    """Method complete_p divides eps by widths and depths: what the optimizer was asked for is scaled, not lost."""
    seen = []

    class Spy(torch.optim.AdamW):
        def __init__(self, params, lr, **options):
            super().__init__(params, lr=lr, **options)
            seen.append({group["eps"] for group in self.param_groups})

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    def residual(depth):
        return nn.Sequential(nn.Linear(12, 8), *[Block() for _ in range(depth)], nn.LayerNorm(8), nn.Linear(8, 4))

    way = {"method": "complete_p", "base_depth": 2, "base_width": 8}
    made = []
    for eps in (1e-8, 1e-5):
        seen.clear()
        wp.check_transfer(
            residual,
            (2, 8),
            loss,
            BATCHES,
            {"way": way},
            optimizer=Spy,
            optimizer_options={"eps": eps},
            rates=[2.0**k for k in range(-10, -5)],
            steps=20,
            widen=0,
            refine=0,
            progress=False,
        )
        made.append(sorted({value / eps for found in seen for value in found}))
    assert len(made[0]) > 1
    assert made[0] == pytest.approx(made[1])


@pytest.mark.slow
def test_what_a_way_sets_beside_weights_counts():
    """A way that puts a factor into the forward pass, as schemes do that edit the model."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.factor = nn.Parameter(torch.zeros(3)), 1.0

        def forward(self, x):
            seen.append(self.factor)
            return self.factor * (x @ self.weight)

    def way(model, size, lr, batch):
        model.factor = 1.0 / size
        return torch.optim.SGD(model.parameters(), lr=lr)

    seen = []
    x = torch.randn(8, 3)
    batches = [(x, x.sum(1))] * 6
    for vectorize in (True, False):
        seen.clear()
        wp.check_transfer(
            lambda size: Scaled(), [2, 4], lambda m, b: (m(b[0]) - b[1]).square().mean(), batches, {"way": way},
            optimizer="sgd", vectorize=vectorize, widen=2, progress=False,
        )  # fmt: skip
        assert set(seen) == {0.5, 0.25}
