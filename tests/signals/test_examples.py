"""What an example says: numbers that are not those assumed are named, and nothing else is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import InputError
from wellposed.signals.examples import PIXELS, assumed

from .test_joint_sampling import assert_by_chance


def pictures() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))


class Adjacent(nn.Module):
    """A graph network: an input multiplies signals."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        return links @ self.second(torch.relu(links @ self.first(x)))


class Sparse(Adjacent):
    """The same, with the links of a sparse matrix."""

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(links, self.second(torch.relu(links @ self.first(x))))


@pytest.mark.parametrize("layout", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr], ids=["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_input_counts_as_the_example_has_it(layout):
    torch.manual_seed(0)
    model, example = Sparse(), (torch.randn(40, 8), layout(normalised(40) * 3.0))
    graph = wp.trace(model, *example)
    assert assumed(graph, graph.inputs[1]) == wp.Input("given")
    assert wp.check(model, *example, plan=wp.plan(graph)).ok


class Listed(Adjacent):
    """The same, by the places of a sparse matrix."""

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        to, at = links.coalesce().indices()
        return torch.zeros(len(x), 4).index_add(0, to, self.second(torch.relu(self.first(x)))[at])


@pytest.mark.slow
def test_the_places_of_a_sparse_input_are_those_of_the_example():
    torch.manual_seed(0)
    model, example = Listed(), (torch.randn(40, 8), normalised(40).to_sparse())
    assert wp.check(model, *example, plan=wp.plan(model, *example)).ok


def normalised(nodes: int) -> torch.Tensor:
    links = (torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    links = ((links + links.T + torch.eye(nodes)) > 0).float()
    degrees = links.sum(1) ** -0.5
    return degrees[:, None] * links * degrees


@pytest.mark.parametrize(
    "example",
    [
        torch.zeros(2, 3, 8, 8),
        torch.ones(2, 3, 8, 8),
        torch.full((2, 3, 8, 8), 255.0),
        torch.rand(2, 3, 8, 8),
        torch.rand(2, 3, 8, 8) * 2 - 1,
        torch.rand(2, 3, 8, 8) * (torch.rand(2, 3, 8, 8) < 0.3),
    ],
    ids=["zeros", "ones", "one number", "pixels", "pixels about 0", "digits on black"],
)
def test_placeholders_and_pixels_are_no_reason_to_warn(example):
    assert wp.plan(pictures(), example).warnings == ()


class Amounts(nn.Module):
    """Dense layers that read a function of an input."""

    def __init__(self, function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.first, self.last = function, nn.Linear(64, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(self.function(x))))


@pytest.mark.parametrize(
    "function",
    [
        torch.log1p,
        torch.sqrt,
        lambda x: x**0.5,
        lambda x: (2.0 * x + 1e-6).log10(),
        lambda x: x.clamp(min=1e-5).log(),
        lambda x: x.view(-1, 4, 64).mean(1).rsqrt(),
        lambda x: x / x.sum(-1, keepdim=True).clamp(min=1.0),
    ],
    ids=["log1p", "sqrt", "power", "sum", "clamp", "mean", "share"],
)
def test_what_divides_or_a_logarithm_or_a_root_reads_is_positive(function):
    torch.manual_seed(0)
    model, example = Amounts(function), torch.rand(256, 64) + 0.5
    plan = wp.plan(model, example)
    assert plan.warnings == ()
    assert wp.check(model, example, plan=plan).ok  # false where a signal has a NaN


@pytest.mark.parametrize(
    "function",
    [torch.square, lambda x: (x - 1.0).sigmoid().log(), lambda x: x.square().mean(-1, keepdim=True).sqrt() * x],
    ids=["square", "logarithm of a sigmoid", "root of a square"],
)
def test_what_no_function_bounds_may_be_negative(function):
    graph = wp.trace(Amounts(function), torch.rand(256, 64))
    assert assumed(graph, graph.inputs[0]) == wp.Input.white()


@pytest.mark.slow
def test_random_examples_of_any_size_are_as_assumed():
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        example = torch.randn(1 + seed % 3, 1 + seed % 7, generator=generator)
        graph = wp.trace(nn.Linear(example.shape[1], 2), example)
        assert wp.plan(graph).warnings == (), seed


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (torch.rand(2, 3, 8, 8) * 255, r"'0' has root mean square 1\d\d where 1 is assumed \(image-like"),
        (torch.randn(8, 3, 8, 8) * 0.01, r"has root mean square 0\.0\d+ where 1 is assumed"),
        (1 + 0.001 * torch.randn(16, 3, 8, 8), r"varies by 0\.00\d+ about its mean 1"),
        (
            torch.randn(16, 3, 8, 8) * torch.eye(16)[0].repeat(192).view(16, 3, 8, 8),
            r"is 0 in 0\.9\d+ of its elements",
        ),
        (torch.randn(2, 3, 8, 8).where(torch.arange(384).view(2, 3, 8, 8) > 5, math.nan), "holds infinities or NaN"),
    ],
    ids=["bytes", "small", "one number with noise", "sparse", "NaN"],
)
def test_an_example_that_is_not_what_is_assumed_is_named_once_with_both_figures(example, words):
    warnings = wp.plan(pictures(), example).warnings
    assert len(warnings) == 1
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(warnings[0])
    assert "pass inputs=x, which is measured" in warnings[0]


def test_sizes_that_norms_undo_are_named_only_where_they_are_far_off():
    model = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(32, 16)
    assert wp.plan(model, 5 * x).warnings == ()
    assert "root mean square" in wp.plan(model, 150 * x).warnings[0]


def test_a_described_input_is_taken_as_described():
    example = torch.rand(2, 3, 8, 8) * 255
    made = wp.plan(pictures(), example, inputs=example)
    assert made.warnings == ()
    assert made.inputs.startswith("0: measured on a batch")


def test_a_plan_does_not_depend_on_what_the_example_holds():
    model = pictures()
    plans = [wp.plan(model, torch.randn(2, 3, 8, 8) * size) for size in (1.0, 1e3)]
    assert plans[0].prescriptions == plans[1].prescriptions


@pytest.mark.slow
def test_what_multiplies_signals_is_told_by_its_sign():
    model, x = Adjacent(), torch.randn(20, 8)
    (said,) = wp.plan(model, x, normalised(20)).warnings
    assert "'1' has root mean square" in said
    assert "where 0 is assumed, and multiplies signals" in said
    assert "inputs={'1': ...}" in said
    assert wp.plan(model, x, normalised(20), inputs={"1": normalised(20)}).warnings == ()
    assert wp.plan(model, x, torch.randn(20, 20)).warnings == ()
    (signs,) = wp.plan(model, x, torch.rand(20, 20)).warnings
    assert "root mean square" not in signs  # a weight would average such a mean out


class Pooled(nn.Module):
    """A mean over the positions that a mask of numbers lets through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = torch.relu(self.first(x)) * mask[..., None]
        return self.second(kept.sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize("count", [4, 2])
def test_a_mask_of_numbers_whose_sum_divides_is_planned_like_one_of_booleans(count):
    x, mask = torch.randn(count, 6, 8), (torch.arange(6) < torch.tensor([[3], [6], [2], [5]])[:count]).float()
    numbers, booleans = (wp.plan(Pooled(), x, one, method="autoinit") for one in (mask, mask.bool()))
    assert numbers.warnings == booleans.warnings == ()
    assert wp.check(Pooled(), x, mask, plan=numbers, inputs={"1": mask}).ok


def test_quotients_by_one_number_that_crosses_0_are_named():
    class Quotients(Pooled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.first(x)
            return self.second(h / h.sum((1, 2), keepdim=True))

    told = wp.plan(Quotients(), torch.randn(4, 6, 8), method="autoinit").warnings
    assert any("no second moment that means anything" in one and "'div'" in one for one in told)


def test_a_check_says_it_too_and_tests_on_the_batches_that_it_is_given():
    model, batch = pictures(), torch.rand(2, 3, 8, 8) * 255
    plan = wp.plan(model, batch)
    said = wp.check(model, batch, plan=plan, draws=2).inputs
    assert said == plan.warnings
    tested = wp.check(model, batch, plan=plan, draws=2, inputs=[batch])
    assert tested.inputs == ()
    first = tested.comparisons[0]
    assert first.measured > 1e3  # 255² / 3 times a weight for inputs of 1


@pytest.mark.slow
def test_masks_of_infinities_count_as_they_are():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.out(torch.softmax(self.score(x) @ x.transpose(1, 2) + mask, -1) @ x)

    model, x = Masked(), torch.randn(4, 5, 16)
    shut = torch.full((5, 5), -math.inf).triu(1)
    plans = [wp.plan(model, x, shut.nan_to_num(neginf=low)) for low in (-math.inf, -1e9)]
    assert {plan.inputs for plan in plans} == {"0: white, mean 0, variance 1; 1: as in the example"}
    assert plans[0].warnings == plans[1].warnings == ()
    assert wp.check(model, x, shut, plan=plans[0], inputs=[(x, shut)]).ok
    with pytest.raises(InputError, match="counts as the example has it"):
        wp.plan(model, x, shut, inputs={"1": wp.Input.white()})
    assert wp.plan(model, x, shut, inputs={"1": shut}).inputs == plans[0].inputs


def test_complex_inputs_are_numbers():
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    x = torch.randn(64, 8, dtype=torch.cfloat)
    plan = wp.plan(Complex(), x)
    assert (plan.inputs, plan.warnings) == ("0: white, mean 0, variance 1", ())
    assert wp.check(Complex(), x, plan=plan).ok
    assert "root mean square" in wp.plan(Complex(), 100 * x).warnings[0]
    assert wp.plan(Complex(), x, inputs=100 * x).inputs.startswith("0: measured on a batch, mean 0, variance 1")


def test_what_is_assumed_of_integers_follows_their_use_and_type():
    graph = wp.trace(nn.Conv2d(3, 4, 3), torch.zeros(2, 3, 8, 8))
    assert assumed(graph, graph.inputs[0]).kind == "image"
    rows = wp.trace(nn.Embedding(9, 4), torch.zeros(2, 3, dtype=torch.int64))
    assert assumed(rows, rows.inputs[0]).kind == "tokens"
    assert PIXELS[0] + 2 * PIXELS[1] ** 0.5 == pytest.approx(255, abs=1)


def test_padding_that_a_model_masks_finds_nothing_where_the_example_holds_it() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(300, 64, padding_idx=0), nn.Linear(64, 64)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            kept = (tokens != 0).float()[..., None]
            return (torch.relu(self.layer(self.table(tokens))) * kept).sum(1) / kept.sum(1)

    model = Pooled()
    tokens = torch.randint(1, 300, (16, 24)) * (torch.arange(24) < torch.arange(4, 20)[:, None])
    plan = wp.plan(model, tokens)
    share = float((tokens != 0).float().mean())
    assert wp.propagate(wp.trace(model, tokens), weights=plan)["table"].second_moment == pytest.approx(share)
    check = wp.check(model, tokens, plan=plan)
    assert check.ok, check


class Segments(nn.Module):
    """Words, and the segment that each belongs to: all to the first, as many encoders say."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.segments = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(2, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.words(ids) + self.segments(torch.zeros_like(ids))


def test_tables_that_are_read_at_zeros_made_like_tokens_do_not_bound_these() -> None:
    """Tokens of which every other is padding would leave half of the second moment."""
    verdict = wp.check(Segments(), torch.randint(1, 50, (8, 12)))
    assert verdict.ok, verdict.summary()
    signals = wp.measure(wp.trace(Segments(), torch.randint(1, 50, (8, 12))), draws=32)
    assert abs(signals["words"].second_moment - 1.0) < 4.0 * math.log(2.0) * signals["words"].log2_error


class Scaled(nn.Module):
    """Rows of a table with one for padding, divided by their own size."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return self.out(x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())


def test_padding_of_which_an_example_has_none_is_neither_assumed_nor_drawn() -> None:
    """One zero row of twenty would make the inverse of the size 220 in the root mean square, where it is 11."""
    graph = wp.trace(Scaled(), torch.randint(1, 20, (16, 12)))
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan), wp.measure(graph, plan=plan, draws=20)
    for name in ("table", "rsqrt"):
        error = math.log2(predicted[name].second_moment / measured[name].second_moment)
        assert abs(error) < 4.0 * measured[name].log2_error
    assert measured["rsqrt"].second_moment < 2.0 / plan.prescriptions["table.weight"].std ** 2


def test_padding_that_an_example_has_is_drawn_as_often_as_other_rows() -> None:
    graph = wp.trace(Scaled(), torch.randint(20, (16, 12)).fill_(0))
    measured = wp.measure(graph, plan=wp.plan(graph), draws=20)
    assert measured["rsqrt"].second_moment > 1e3


class Unmasked(nn.Module):
    """Averages, sums, or maxima of the words of padded texts, which no mask shuts the padding out of."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.out = way, nn.Linear(48, 4)
        bag = {"mode": way.removeprefix("bag of ")} if way.startswith("bag of ") else {}
        self.table = (nn.EmbeddingBag if bag else nn.Embedding)(400, 48, padding_idx=0, **bag)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.table(tokens)
        return self.out({"sum": torch.sum, "max": torch.amax}.get(self.way, lambda rows, _: rows)(rows, 1))


@pytest.mark.parametrize("way", ["sum", "max", "bag of sum", "bag of mean", "bag of max"])
def test_padding_stays_where_an_example_has_it(way: str) -> None:
    """Half of the tokens are padding: without it a sum would be twice as large in its second moment."""
    tokens = torch.randint(1, 400, (32, 16)) * (torch.arange(16) < torch.arange(32)[:, None] % 16 + 1)
    model = Unmasked(way)
    graph = wp.trace(model, tokens)
    assert wp.check(graph, plan=wp.plan(graph)).ok
    predicted = wp.propagate(graph, weights=wp.plan(graph))["out"].second_moment
    found = []
    for seed in range(24):
        wp.plan(graph, seed=seed).apply_(model)
        drawn = torch.randint(1, 400, tokens.shape) * (tokens > 0)
        found.append(model(drawn).detach().square().mean())
    measured = torch.stack(found)
    assert abs(predicted - measured.mean()) < 4.0 * measured.std() / math.sqrt(len(found))


def test_an_example_of_padding_alone_is_a_placeholder() -> None:
    model = Unmasked("bag of mean")
    signals = wp.propagate(wp.trace(model, torch.zeros(32, 16, dtype=torch.int64)), weights="current")
    assert signals["table"].second_moment > 0.0


def test_a_row_of_padding_that_was_drawn_with_the_others_is_one_of_them() -> None:
    """Of its 4 rows of 64 numbers tokens find 3: by chance their mean square is off by √(2 / 192 − 2 / 256)."""
    model = nn.Sequential(nn.Embedding(4, 64, padding_idx=0), nn.Linear(64, 4))
    nn.init.normal_(model[0].weight)
    graph = wp.trace(model, torch.randint(1, 4, (16, 8)))
    predicted, measured = wp.propagate(graph)["0"], wp.measure(graph, draws=40)["0"]
    chance = math.sqrt(2.0 / 192.0 - 2.0 / 256.0) / math.log(2.0)
    error = math.log2(predicted.second_moment / measured.second_moment)
    assert abs(error) < 4.0 * math.hypot(chance, measured.log2_error)


def test_two_rows_that_remain_are_drawn_as_often() -> None:
    graph = wp.trace(nn.Sequential(nn.Embedding(3, 16, padding_idx=0), nn.Linear(16, 4)), torch.randint(1, 3, (64, 8)))
    plan = wp.plan(graph)
    predicted, measured = wp.propagate(graph, weights=plan)["0"], wp.measure(graph, plan=plan, draws=60)["0"]
    assert predicted.similarity == pytest.approx(0.5)
    assert abs(measured.similarity - 0.5) < 4.0 * measured.similarity_error


class Boxes(nn.Module):
    """Boxes of words on a page (Xu et al. 2020): their corners, and their sizes as differences of these."""

    def __init__(self) -> None:
        super().__init__()
        self.corner, self.size, self.out = nn.Embedding(32, 16), nn.Embedding(32, 16), nn.Linear(16, 4)

    def forward(self, boxes: torch.Tensor) -> torch.Tensor:
        low, high = boxes[..., :2], boxes[..., 2:]
        return self.out((self.corner(low) + self.corner(high) + self.size(high - low)).sum(-2))


def test_tokens_of_which_parts_meet_stay_those_of_the_example() -> None:
    """The size of a box of corners drawn apart is below 0 as often as not, and no row of its table."""
    corners = torch.randint(0, 32, (8, 12, 2, 2), generator=torch.Generator().manual_seed(0)).sort(-2).values
    verdict = wp.check(Boxes(), corners.flatten(-2))
    assert verdict.ok, verdict


class Prefixed(nn.Module):
    """Tokens behind a start of zeros, whose row is that of padding: a decoder's input."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(30, 16, padding_idx=0), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.table(nn.functional.pad(tokens, (2, 0))))


def test_known_indices_find_nothing_in_rows_of_zeros() -> None:
    tokens = torch.randint(1, 30, (8, 6), generator=torch.Generator().manual_seed(0))
    graph = wp.trace(Prefixed(), tokens)
    plan = wp.plan(graph, method="autoinit")
    predicted, measured = wp.propagate(graph, weights=plan)["table"], wp.measure(graph, plan=plan, draws=32)["table"]
    assert predicted.second_moment == pytest.approx(6 / 8, rel=1e-6)
    assert_by_chance(predicted, measured)


class Bags(nn.Module):
    """Bags of rows, each from where the last one ends."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.EmbeddingBag(15, 8), nn.Linear(8, 1)

    def forward(self, ids: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.rows(ids, begins)))


def test_where_bags_begin_is_no_index() -> None:
    ids, begins = torch.randint(0, 15, (40,)), torch.tensor([0, 3, 11, 12, 30])
    plan = wp.plan(Bags(), ids, begins)
    assert plan.inputs == "0: tokens, independent and equally likely; 1: as in the example"
    model = Bags()
    plan.apply_(model)
    assert wp.check(model, ids, begins, plan=plan).ok


class Masked(nn.Module):
    """A mean over the positions that a mask of floats names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.second((torch.relu(self.first(x)) * mask[..., None]).sum(1) / 10)


def test_floats_that_are_0_or_1_are_a_mask_as_often_as_in_the_example() -> None:
    lengths = torch.tensor([10, 8, 2, 10, 3, 6, 1, 8])
    x, mask = torch.randn(8, 10, 16), (torch.arange(10) < lengths[:, None]).float()
    plan = wp.plan(Masked(), x, mask)
    assert "1: white, mean 0.6, variance 0.24, values 0, 1" in plan.inputs
    assert not plan.warnings
    for placeholder in (torch.ones(8, 10), torch.zeros(8, 10), torch.full((8, 10), 0.5)):
        assert "values 0, 1" not in wp.plan(Masked(), x, placeholder).inputs
