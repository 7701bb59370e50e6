"""Inputs: what a descriptor says, what it draws, and what is measured from that, are the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import wellposed as wp
from wellposed.errors import InputError
from wellposed.signals import Input
from wellposed.signals.integration import kernels

DRAWS, SHAPE = 150, (4, 3, 12, 10)


def drawn(descriptor: Input, shape=SHAPE, count=DRAWS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.stack([descriptor.sample(shape, generator) for _ in range(count)]).double()


def within(seen: torch.Tensor, expected: float, errors: float = 5.0) -> None:
    """``seen`` holds one figure per independent draw."""
    error = float(seen.std() / len(seen) ** 0.5)
    assert abs(float(seen.mean()) - expected) <= errors * error, (float(seen.mean()), expected, error)


@pytest.mark.parametrize(
    "descriptor",
    [
        Input.white(0.3, 2.0),
        Input.image(),
        Input.image(mean=-0.5, var=0.5, channel_correlation=0.4),
        Input.image(np.multiply.outer(0.8 ** np.arange(12), 0.6 ** np.arange(10)), 0.2, 1.5, 0.7),
    ],
    ids=["white", "image", "image, less colour", "image, given profile"],
)
def test_draws_have_the_state_that_the_descriptor_says(descriptor):
    x = drawn(descriptor)
    state = descriptor.state(SHAPE, 1)
    assert state.shape == SHAPE
    within(x.mean(dim=(1, 2, 3, 4)), state.pooled_mean)
    within((x**2).mean(dim=(1, 2, 3, 4)), state.second_moment)
    c = x - descriptor.mean
    kernel = kernels.promote(state.corr, (2, 2, 4, 4)) * descriptor.var
    for dy, dx in ((0, 1), (1, 0), (2, 2), (3, 0), (0, 3)):
        ahead, here = c[..., dy:, dx:], c[..., : 12 - dy, : 10 - dx]
        within((ahead * here).mean(dim=(1, 2, 3, 4)), kernel[0, 0, dy, dx])
        within((ahead[:, :, 1:] * here[:, :, :-1]).mean(dim=(1, 2, 3, 4)), kernel[0, 1, dy, dx])
    within((c[:, 1:] * c[:, :-1]).mean(dim=(1, 2, 3, 4)), 0.0)


@pytest.mark.parametrize("shape", [(4, 12, 10, 3), (3, 8, 9, 10, 3)])
def test_pictures_with_channels_last_have_the_same_fields(shape):
    """The same fields, with another axis for the channels; what is measured on them says so too."""
    descriptor = Input.image(var=1.5, channel_correlation=0.6)
    first = (shape[0], shape[-1], *shape[1:-1])
    state = descriptor.state(shape, 1)
    order = [0, *range(2, len(shape)), 1]
    assert np.array_equal(state.corr, descriptor.state(first, 1).corr.transpose(order))
    assert torch.equal(drawn(descriptor, shape, 3), drawn(descriptor, first, 3).movedim(2, -1))
    if len(shape) == 4:
        batch = drawn(descriptor, first, 10).flatten(0, 1)
        assert Input.from_batch(batch.movedim(1, -1)) == Input.from_batch(batch)


def test_profiles_are_stationary_and_start_at_one():
    state = Input.image().state((2, 3, 16, 16), 1)
    profile = state.corr[0, 0]
    assert profile[0, 0] == 1.0
    assert 0.5 < profile[0, 1] < 1.0
    assert np.all(np.diff(profile[0, :8]) < 0)


def test_video_is_correlated_along_its_frames():
    x = drawn(Input.image(), (2, 3, 4, 6, 6), 100)
    state = Input.image().state((2, 3, 4, 6, 6), 1)
    along = (x[..., 1:] * x[..., :-1]).mean(dim=(1, 2, 3, 4, 5))
    within(along, float(state.corr[0, 0, 0, 0, 1]))


def test_measuring_a_batch_gives_back_what_it_was_drawn_from():
    descriptor = Input.image(np.multiply.outer(0.8 ** np.arange(12), 0.6 ** np.arange(10)), 0.2, 1.5, 0.7)
    batch = drawn(descriptor).reshape(-1, *SHAPE[1:])
    seen = Input.from_batch(batch)
    x = batch.reshape(DRAWS, -1)
    within(x.mean(dim=1), seen.mean, 0.1)  # the same numbers: equal but for rounding
    assert seen.kind == "measured"
    assert seen.var == pytest.approx(
        1.5, rel=5 * float(((batch - 0.2) ** 2).mean(dim=(1, 2, 3)).std() / 1.5 / len(batch) ** 0.5)
    )
    profile = np.asarray(seen.profile)
    for dy, dx in ((0, 1), (1, 0), (1, 1)):
        product = (batch[..., dy:, dx:] - 0.2) * (batch[..., : 12 - dy, : 10 - dx] - 0.2)
        error = float(product.mean(dim=(1, 2, 3)).std() / len(batch) ** 0.5) / 1.5
        assert profile[dy, dx] == pytest.approx(0.8**dy * 0.6**dx, abs=5 * error + 5 * 0.01), (dy, dx)
    assert seen.channel_correlation == pytest.approx(0.7, abs=0.05)


def test_measured_tables_and_tokens_have_no_profile():
    seen = Input.from_batch(torch.tensor([[1.0, 3.0], [5.0, 7.0]]))
    assert (seen.kind, seen.mean, seen.var, seen.profile) == ("measured", 4.0, 5.0, None)
    assert Input.from_batch(torch.tensor([1, 2])).kind == "tokens"


def test_the_default_follows_shape_and_type():
    real, whole = torch.float32, torch.int64
    assert Input.default((8, 3, 32, 32), real).kind == "image"
    assert Input.default((8, 3, 4, 32, 32), real).kind == "white"  # a side of 4 is no picture
    assert Input.default((8, 3, 16, 32, 32), real).kind == "image"
    assert Input.default((8, 64, 32, 32), real).kind == "white"
    assert Input.default((8, 32, 32, 3), real).kind == "image"
    assert Input.default((8, 16, 32, 32, 1), real).kind == "image"
    assert Input.default((8, 32, 4, 3), real).kind == "white"
    assert Input.default((8, 100, 3), real).kind == "white"
    assert Input.default((8, 100), real).kind == "white"
    assert Input.default((8, 100), whole).kind == "tokens"


def test_tokens_are_uniform_over_the_vocabulary():
    generator = torch.Generator().manual_seed(1)
    tokens = Input.tokens(7).sample((50, 40), generator)
    assert tokens.dtype == torch.int64
    counts = torch.bincount(tokens.flatten(), minlength=7)
    assert len(counts) == 7
    assert float(((counts - 2000 / 7) ** 2 / (2000 / 7)).sum()) < 6 + 5 * 12**0.5  # chi squared, 6 degrees of freedom
    assert int(Input.tokens().sample((3,), generator, vocabulary=1).max()) == 0
    with pytest.raises(InputError, match="the size of the vocabulary is not known"):
        Input.tokens().sample((3,), generator)


def test_positive_elements_have_the_moments_that_they_are_described_by():
    described = Input(mean=2.0, var=3.0, positive=True)
    drawn = described.sample((1000, 1000), torch.Generator().manual_seed(1)).double()
    assert float(drawn.min()) > 0.0
    assert float(drawn.mean()) == pytest.approx(2.0, abs=6.0 * (3.0 / 1e6) ** 0.5)
    logarithms = drawn.log()  # whose moments have no heavy tails
    assert float(logarithms.var()) == pytest.approx(math.log(1.75), rel=6.0 * (2.0 / 1e6) ** 0.5)
    with pytest.raises(InputError, match=r"have a mean above 0, not mean=0\.0, var=1\.0"):
        Input(positive=True)


def test_descriptions_name_what_is_assumed():
    assert Input.white().describe() == "white, mean 0, variance 1"
    assert Input.image().describe() == "image-like (1/f), mean 0, variance 1"
    assert Input.tokens(50).describe() == "tokens, independent and equally likely of 50"
    assert Input.from_batch(torch.ones(2, 2) * 3).describe() == "measured on a batch, mean 3, variance 0"


def test_bad_descriptors_are_refused():
    with pytest.raises(InputError, match=r"variance >= 0, not mean=0\.0, var=-1\.0"):
        Input.white(0.0, -1.0)
    with pytest.raises(InputError, match=r"starts with 1 at displacement 0, not 0\.5"):
        Input.image([0.5, 0.2])
    with pytest.raises(InputError, match="at least two finite elements"):
        Input.from_batch(torch.tensor([[float("nan"), 1.0]]))
    with pytest.raises(InputError, match="the correlation profile has 1 axes, the input 2 spatial ones"):
        Input.image([1.0, 0.5]).state((2, 3, 8, 8), 1)
    with pytest.raises(InputError, match=r"described by wellposed\.Input or a batch, not float"):
        wp.propagate(wp.trace(torch.nn.ReLU(), torch.zeros(2, 3)), inputs=1.0)


def test_a_table_is_measured_by_column():
    torch.manual_seed(0)
    scales, shifts = torch.tensor([1.0, 10.0, 0.1, 3.0]), torch.tensor([0.0, 5.0, 1.0, -2.0])
    table = shifts + scales * torch.randn(400, 4)
    told = wp.Input.from_batch(table)
    state = told.state((7, 4), 1)
    np.testing.assert_allclose(state.var.ravel(), table.double().var(0, correction=0), rtol=1e-6)
    drawn = told.sample((100_000, 4), torch.Generator().manual_seed(1))
    np.testing.assert_allclose(drawn.mean(0), table.mean(0), atol=0.15)
    np.testing.assert_allclose(drawn.std(0), table.std(0, correction=0), rtol=0.02)

    class Chosen(nn.Module):
        def forward(self, x):
            return x[:, 1:3] + 0.0, x.sum(1)

    parts = wp.propagate(wp.trace(Chosen(), table), inputs=table)
    assert parts[0].second_moment == pytest.approx(float((table[:, 1:3] ** 2).mean()), rel=1e-5)
    assert wp.Input.from_batch(torch.randn(400, 4)).columns is None
    with pytest.raises(InputError, match="a table of 4 columns was described"):
        told.state((7, 5), 1)


class Loss(nn.Module):
    """A loss of a convolution's logits and labels of 0 and 1."""

    def __init__(self, form) -> None:
        super().__init__()
        self.convolution, self.form = nn.Conv2d(3, 1, 3, padding=1), form

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.form(self.convolution(x), y)


def focal(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p = z.sigmoid()
    entropy = nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none")
    return (0.25 * y + 0.75 * (1 - y)) * entropy * (1 - p * y - (1 - p) * (1 - y)) ** 2


LOSSES = {
    "focal": focal,
    "entropy": lambda z, y: -(y * z.sigmoid().log() + (1 - y) * (1 - z.sigmoid()).log()),
    "dice": lambda z, y: (2 * z.sigmoid() * y).sum((2, 3)) / (z.sigmoid() + y).sum((2, 3)),
    "weights": lambda z, y: z * torch.where(y > 0.5, 3.0, 1.0),
    "neither": lambda z, y: y * (1 - y),
}


EXCLUSIVE = 0.25
"""Octaves by which a sum may be off whose parts exclude one another: y log p and (1 − y) log (1 − p), whose covariance
is told by what is linear in them."""


def labelled(draw: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(draw)
    x = torch.randn(4, 3, 16, 16, generator=generator)
    return x, (torch.rand(4, 1, 16, 16, generator=generator) < 0.3).float()


@pytest.mark.parametrize("form", LOSSES)
def test_labels_of_0_and_1_count_as_such(form: str) -> None:
    graph = wp.trace(Loss(LOSSES[form]), *labelled(0))
    described = {name: Input.from_batch(given) for name, given in zip(("0", "1"), labelled(0), strict=True)}
    plan = wp.plan(graph, inputs=described, method="autoinit")
    verdict = wp.check(graph, plan=plan, inputs=[labelled(draw) for draw in range(24)], draws=24)
    assert verdict.ok, str(verdict)
    last = verdict.comparisons[-1]
    beyond = EXCLUSIVE if form == "entropy" else 0.0
    assert last.predicted == last.measured == 0.0 or abs(last.error) < beyond + 4 * last.standard_error


def test_what_is_drawn_for_labels_are_labels() -> None:
    found = Input.from_batch(labelled(0)[1])
    assert found.values is not None
    assert [value for value, _ in found.values] == [0.0, 1.0]
    assert "values 0, 1" in found.describe()
    values = drawn(found, (4, 1, 16, 16))
    assert set(values.unique().tolist()) == {0.0, 1.0}
    within(values.flatten(1).mean(1), found.mean)
    assert Input.from_batch(torch.randn(64, 64)).values is None


ALIKE = {
    "white": (Input.white(0.5, 2.0, similarity=0.4), (8, 4, 16)),
    "image": (Input.image(similarity=0.6), (8, 3, 12, 10)),
    "few values": (Input("white", 0.5, 0.25, values=((0.0, 0.5), (1.0, 0.5)), similarity=0.8), (8, 4, 16)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_samples_are_as_similar_as_they_are_said_to_be(name):
    descriptor, shape = ALIKE[name]
    x = drawn(descriptor, shape)
    pairs = x[:, 0] * x[:, 1]
    within(pairs.flatten(1).mean(1) / (x * x).mean(), descriptor.similarity)
    state = wp.propagate(wp.trace(nn.LeakyReLU(1.0), torch.zeros(shape)), inputs=descriptor)
    assert state[0].similarity == pytest.approx(descriptor.similarity, abs=1e-5)  # of a quadrature


@pytest.mark.parametrize("name", ALIKE)
def test_the_similarity_of_a_batch_is_measured(name):
    descriptor, shape = ALIKE[name]
    batches = (descriptor.sample((64, *shape[1:]), torch.Generator().manual_seed(seed)) for seed in range(1, 25))
    found = [Input.from_batch(batch) for batch in batches]
    within(torch.tensor([one.similarity for one in found]), descriptor.similarity)
    assert all("similarity of two" in one.describe() for one in found)


@pytest.mark.parametrize("seed", range(3))
def test_samples_that_share_nothing_have_no_similarity(seed):
    for descriptor, shape in ((Input.white(), (32, 5, 8)), (Input.image(), (32, 3, 16, 16))):
        batch = descriptor.sample(shape, torch.Generator().manual_seed(seed))
        assert Input.from_batch(batch).similarity is None


def test_a_net_of_similar_inputs_is_predicted_as_it_is_measured():
    torch.manual_seed(0)
    graph = wp.trace(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), torch.zeros(8, 256))
    told = Input.white(similarity=0.5)
    predicted, measured = wp.propagate(graph, inputs=told), wp.measure(graph, inputs=told, draws=16)
    for signal in predicted:
        assert signal.similarity == pytest.approx(measured[signal.name].similarity, abs=0.03)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"similarity": 1.5}, "between 0, by the mean, and 1, not 1.5"),
        ({"mean": 1.0, "similarity": 0.3}, "between 0.5, by the mean, and 1, not 0.3"),
        ({"kind": "tokens", "similarity": 0.3}, "not tokens, independent"),
    ],
)
def test_a_similarity_that_cannot_be_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        Input(**options)
