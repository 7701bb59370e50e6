"""The numbers that are drawn: their distribution against scipy's, and what they do and do not depend on."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import special, stats

from wellposed.plans import Centering, Constant, Drawn, Plan, draw, parts
from wellposed.plans.filling import by_output, finish, start_, workers
from wellposed.plans.places import TILE
from wellposed.plans.streams import BLOCK, TRUNCATED_STD, Stream, furthest, stream_key, stream_of

# The probability that one of these tests fails by chance, were its seed not fixed.
ALPHA = 1e-4


def said(distribution, shape, *, name="w", std=0.1, mean=0.0, output_axis=0, groups=1):
    return Drawn(
        name=name,
        shape=shape,
        distribution=distribution,
        std=std,
        mean=mean,
        output_axis=output_axis,
        groups=groups,
        reason="test",
    )


def drawn(prescription, seed=0, threads=2):
    out = torch.full(prescription.shape, float("nan"))
    with workers(threads) as crew:
        finish(start_(out, prescription, seed, crew))
    return out


REFERENCES = {
    "normal": lambda mean, std: stats.norm(mean, std),
    "uniform": lambda mean, std: stats.uniform(mean - math.sqrt(3) * std, 2 * math.sqrt(3) * std),
    # scipy's own std of the cut distribution, not ours, sets the scale of the reference
    "truncated_normal": lambda mean, std: stats.truncnorm(
        -2, 2, loc=mean, scale=std / float(stats.truncnorm(-2, 2).std())
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2**63])
@pytest.mark.parametrize("mean", [0.0, 0.3])
@pytest.mark.parametrize("distribution", REFERENCES)
def test_numbers_follow_their_distribution(distribution, mean, seed):
    values = drawn(said(distribution, (500, 700), std=0.02, mean=mean), seed).double().numpy().ravel()
    reference = REFERENCES[distribution](mean, 0.02)
    assert stats.kstest(values, reference.cdf).pvalue > ALPHA
    error = 0.02 / math.sqrt(values.size)
    assert abs(values.mean() - mean) < stats.norm.isf(ALPHA / 2) * error
    kurtosis = float(reference.stats("k")) + 3.0
    error_of_variance = 0.02**2 * math.sqrt((kurtosis - 1.0) / values.size)
    assert abs(values.var() - 0.02**2) < stats.norm.isf(ALPHA / 2) * error_of_variance


def test_the_kolmogorov_test_would_notice_an_uncorrected_cut():
    values = drawn(said("truncated_normal", (500, 700), std=0.02 * TRUNCATED_STD)).double().numpy().ravel()
    assert stats.kstest(values, REFERENCES["truncated_normal"](0.0, 0.02).cdf).pvalue < ALPHA


def test_the_cut_is_at_two_standard_deviations_of_the_normal_that_is_cut():
    values = drawn(said("truncated_normal", (1000, 1000), std=1.0)).abs().max().item()
    bound = 2.0 / float(stats.truncnorm(-2, 2).std())
    assert 0.999 * bound < values <= bound * (1 + 1e-6)


def test_std_after_the_cut_has_its_closed_form():
    assert pytest.approx(float(stats.truncnorm(-2, 2).std()), rel=1e-12) == TRUNCATED_STD


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
def test_tails_are_finite_and_symmetric_in_law(distribution):
    values = drawn(said(distribution, (2000, 1000), std=1.0))
    assert values.isfinite().all()
    assert abs((values > 0).double().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(values.numel())


@pytest.mark.parametrize("std", [1e-34, 1e-12, 1e6])
@pytest.mark.parametrize("distribution", ["truncated_normal", "uniform"])
def test_extreme_scales_make_no_outliers(distribution, std):
    values = drawn(said(distribution, (400, 400), std=std)).double() / std
    assert values.abs().max() < 2.3
    assert values.std().item() == pytest.approx(1.0, abs=4 / math.sqrt(values.numel()))


def test_zero_std_is_the_mean():
    assert torch.equal(drawn(said("normal", (3, 4), std=0.0, mean=0.5)), torch.full((3, 4), 0.5))


def test_names_seeds_and_blocks_are_independent():
    n = BLOCK
    a = drawn(said("normal", (2 * n,), std=1.0))
    tiles = drawn(said("normal", (512, 1024), std=1.0)).view(2, 256, 2, 512).transpose(1, 2).reshape(4, n)
    assert (tiles @ tiles.T / n - torch.eye(4)).abs().max() < 6 / math.sqrt(n)
    b = drawn(said("normal", (2 * n,), std=1.0, name="v"))
    c = drawn(said("normal", (2 * n,), std=1.0), seed=1)
    for left, right in ((a, b), (a, c), (a[:n], a[n:])):
        correlation = float((left * right).mean())
        assert abs(correlation) < 4 / math.sqrt(left.numel())
    assert stream_key(1, "2") != stream_key(12, "")
    assert len({stream_key(seed, name) for seed in range(20) for name in "abc"}) == 60


def test_threads_do_not_change_the_numbers():
    big = said("truncated_normal", (3, BLOCK + 17))
    before = torch.get_num_threads()
    alone = drawn(big, threads=1)
    assert torch.equal(drawn(big, threads=3), alone)
    try:
        torch.set_num_threads(1)
        assert torch.equal(drawn(big), alone)
        orthogonal = said("orthogonal", (300, 300))
        single = drawn(orthogonal)
        torch.set_num_threads(2)
        assert torch.equal(drawn(orthogonal), single)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_longer_tensor_starts_with_the_same_numbers():
    short, long = drawn(said("normal", (1000,))), drawn(said("normal", (BLOCK + 1000,)))
    assert torch.equal(short, long[:1000])


def test_a_stream_gives_the_same_numbers_in_every_version():
    """The stream is part of the format: a plan made today must give the same weights with the next version."""
    key = stream_key(0, "w")
    assert key == 0xBA53F0EA2A2D112F78425673768829B0

    def block(index, count):
        words = np.random.SFC64(np.random.SeedSequence(key, spawn_key=(index,))).random_raw(-(-count // 2))
        halves = [int(word) >> shift & 0xFFFFFFFF for word in words for shift in (0, 32)]
        signed = np.array([half - (half >> 31 << 32) for half in halves[:count]], dtype=np.float64)
        return signed * 2.0**-31 * math.sqrt(3.0) * 0.1

    flat = drawn(said("uniform", (BLOCK + 4,))).numpy()
    np.testing.assert_allclose(flat[:4], block(0, 4), rtol=3e-7)
    np.testing.assert_allclose(flat[BLOCK:], block(1, 4), rtol=3e-7)
    tiled = drawn(said("uniform", (2, 150, 1025))).numpy().reshape(300, 1025)  # tiles of 512, 512 and 1 columns
    np.testing.assert_allclose(tiled[:256, :512].ravel(), block(0, 256 * 512), rtol=3e-7)
    np.testing.assert_allclose(tiled[:2, 512:1024].ravel(), block(1, 1024), rtol=3e-7)
    np.testing.assert_allclose(tiled[:256, 1024], block(2, 256), rtol=3e-7)
    np.testing.assert_allclose(tiled[256:258, :512].ravel(), block(3, 1024), rtol=3e-7)


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform"])
def test_the_outermost_integers_become_finite_numbers(distribution):
    stream = stream_of(said(distribution, (4,), std=1.0), 0)
    bits = np.array([[-(2**31), 2**31 - 1, 0, 1]], dtype=np.int32)
    out = np.empty((1, 4), np.float32)
    stream.numbers(bits, out)
    assert np.isfinite(out).all()
    assert out[0, 0] == -out[0, 1]
    assert 0.999 * furthest(said(distribution, (4,))) * (0.985 if distribution == "normal" else 1.0) < out[0, 1]
    assert out[0, 1] <= furthest(said(distribution, (4,))) * (1 + 1e-6)
    assert out[0, 2] == 0.0 < out[0, 3] < 1e-8


@pytest.mark.parametrize("distribution", ["normal", "truncated_normal"])
def test_normal_numbers_are_uniform_ones_through_the_inverse_of_the_distribution_function(distribution):
    """In float64, by scipy. A float32 uniform number is off by half a unit of its last place, and the quotient takes
    about ten roundings more; in the tails the inverse magnifies the first by erf⁻¹'(u) u / erf⁻¹(u)."""
    uniform = drawn(said("uniform", (3 * BLOCK,), std=1 / math.sqrt(3.0))).double().numpy()
    cut = math.erf(math.sqrt(2.0)) if distribution == "truncated_normal" else 1.0
    exact = math.sqrt(2.0) * special.erfinv(cut * uniform)
    std = 1.0 if cut == 1.0 else float(stats.truncnorm(-2, 2).std())
    values = drawn(said(distribution, (3 * BLOCK,), std=std)).double().numpy()
    magnified = cut * np.abs(uniform) * math.sqrt(math.pi / 2) * np.exp(exact**2 / 2) / np.abs(exact)
    assert (np.abs(values / exact - 1.0) <= 2.0**-24 * (10.0 + 3.0 * magnified)).all()


# ---- orthogonal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "output_axis", "groups"),
    [
        ((64, 32), 0, 1),  # tall
        ((32, 64), 0, 1),  # wide
        ((48, 16), 0, 3),  # fused q, k, v
        ((12, 4, 3, 3), 0, 2),  # grouped convolution
        ((8, 1, 3, 3), 0, 8),  # depthwise
        ((8, 5, 3), 1, 2),  # grouped transposed convolution: [in, out / groups, k]
        ((4, 10, 6), 2, 4),  # stacked experts, [expert, in, out]
        ((7,), 0, 1),
    ],
)
def test_orthogonal_matrices_have_orthonormal_sides_and_the_std_asked_for(shape, output_axis, groups):
    values = drawn(said("orthogonal", shape, std=0.25, output_axis=output_axis, groups=groups)).double()
    assert values.square().mean().sqrt().item() == pytest.approx(0.25, rel=1e-6)
    if output_axis == 0:
        blocks = [block.reshape(block.shape[0], -1) for block in values.chunk(groups, 0)]
    else:
        blocks = [block.transpose(0, output_axis).reshape(shape[output_axis], -1) for block in values.chunk(groups, 0)]
    for block in blocks:
        rows, columns = block.shape
        small = block @ block.T if rows <= columns else block.T @ block
        scale = 0.25**2 * max(rows, columns)
        torch.testing.assert_close(small, scale * torch.eye(min(rows, columns)).double(), atol=1e-6 * scale, rtol=0)


@pytest.mark.slow
def test_orthogonal_matrices_are_haar():
    """Eigenvalue angles of a Haar orthogonal 2×2 matrix of determinant 1 are uniform; QR without signs is not."""
    angles, determinants = [], []
    for seed in range(2000):
        q = drawn(said("orthogonal", (2, 2), std=1 / math.sqrt(2)), seed).double()
        determinant = float(torch.linalg.det(q))
        determinants.append(determinant)
        if determinant > 0:
            angles.append(math.atan2(q[1, 0], q[0, 0]))
    assert stats.kstest(angles, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > ALPHA
    positive = sum(d > 0 for d in determinants)
    assert stats.binomtest(positive, len(determinants), 0.5).pvalue > ALPHA


def test_layout_by_output_sums_like_the_operators():
    x = torch.ones(1, 8, 5, 5, dtype=torch.float64)
    weight = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    sums = by_output(weight, 0, 2).sum(-1).flatten()
    torch.testing.assert_close(torch.conv2d(x, weight, groups=2)[0, :, 0, 0], sums)
    back = torch.randn(8, 3, 1, 1, dtype=torch.float64)
    sums = by_output(back, 1, 2).sum(-1).flatten()
    torch.testing.assert_close(torch.nn.functional.conv_transpose2d(x, back, groups=2)[0, :, 0, 0], sums)


# ---- parts of a parameter -------------------------------------------------------------------------------------------


def plan_of(*prescriptions):
    named = {one.name: one for one in prescriptions}
    return Plan(model="M", method="test", seed=3, prescriptions=named)


def taken(shape, generator):
    """An index of slices and integers, of which some are left out at the end."""
    index = []
    for size in shape[: generator.integers(0, len(shape) + 1)]:
        first, end = sorted(generator.integers(0, size + 1, 2).tolist())
        kind = generator.integers(0, 4)
        step = int(generator.integers(1, 3))
        index.append((slice(None), slice(first, end), slice(first, end, step), first % size)[kind])
    return tuple(index)


SHAPES = [
    (), (7,), (3, 5, 7), (700, 500), (2 * BLOCK + 3,), (3, BLOCK + 1), (40, 3, 9000), (2, 3, 1, 5, 2), (600, 1100),
    (3, 200, 600), (256, 512), (257, 3, 513), (255, 2000),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("distribution", ["normal", "truncated_normal", "uniform", "complex_normal"])
def test_a_part_has_the_bits_of_the_whole(distribution, shape):
    prescription = said(distribution, shape, output_axis=None, mean=0.25 * (distribution != "complex_normal"))
    plan = plan_of(prescription)
    whole, part = draw(plan)["w"], parts(plan, "w")
    generator = np.random.default_rng(0)
    for index in [(), *(taken(shape, generator) for _ in range(30))]:
        assert torch.equal(part(index), whole[index]), index
    assert torch.equal(parts(plan, "w", seed=1)(()), draw(plan, seed=1)["w"])


def test_what_depends_on_the_whole_is_cut_from_it():
    weight = said("orthogonal", (6, 4), name="weight")
    scaled = said("normal", (3, 2), name="scaled").changed(channel_std=(1.0, 2.0, 3.0))
    bias = Centering(name="bias", shape=(6,), weight="weight", value=0.5, reason="test")
    zero = Constant(name="zero", shape=(5, 2), constant=1.5, reason="test")
    centred = said("normal", (4, 3), name="centred").changed(centred=True, output_axis=0)
    plan = plan_of(weight, scaled, bias, zero, centred)
    whole = draw(plan)
    for name in whole:
        part = parts(plan, name)
        assert torch.equal(part((slice(1, 3),)), whole[name][1:3])
        assert torch.equal(part((2,)), whole[name][2])


@pytest.mark.parametrize(("shape", "axis", "groups"), [((6, 40), 0, 1), ((12, 3, 3, 3), 0, 4), ((8, 5, 3), 1, 2)])
def test_centred_weights_sum_to_zero_by_output_and_keep_their_size(shape, axis, groups):
    plain = said("normal", shape, output_axis=axis).changed(groups=groups, std=0.5)
    whole, before = draw(plan_of(plain.changed(centred=True)))["w"], draw(plan_of(plain))["w"]
    count = math.prod(shape) // (shape[axis] * (1 if axis == 0 else groups))
    split = (groups if axis else 1, -1, *shape[1:])
    rows = [each.view(split).movedim(axis + 1, 1).flatten(2).double() for each in (whole, before)]
    expected = (rows[1] - rows[1].mean(2, keepdim=True)) * (count / (count - 1)) ** 0.5
    torch.testing.assert_close(rows[0], expected, rtol=1e-6, atol=1e-6)
    assert float(rows[0].sum(2).abs().max()) < 1e-5


def blocks_drawn(part, index):
    """How many blocks of a stream a part takes, and how many NumPy holds at most meanwhile."""
    seen = []
    fill = Stream.bits

    def counted(stream, block, count):
        seen.append(count)
        return fill(stream, block, count)

    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "bits", counted)
        part(index)
    peak = tracemalloc.get_traced_memory()[1] / (4 * BLOCK)
    tracemalloc.stop()
    return len(seen), peak


def test_a_part_takes_the_work_and_the_memory_of_the_part(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    shards = 4
    rows, columns = 2 * shards * TILE[0], 2 * shards * TILE[1]
    part = parts(plan_of(said("truncated_normal", (rows, columns))), "w")
    for number in range(shards):
        for cut in (
            (slice(number * rows // shards, (number + 1) * rows // shards),),
            (slice(None), slice(number * columns // shards, (number + 1) * columns // shards)),
        ):
            count, held = blocks_drawn(part, cut)
            assert count * BLOCK == rows * columns // shards
            assert held < 8  # a block and what it is computed with
    # Of few rows each is blocks in order; along the last axis every row's are needed, but not at the same time.
    part = parts(plan_of(said("truncated_normal", (16, BLOCK))), "w")
    assert blocks_drawn(part, (slice(4, 8),))[0] == 4
    count, held = blocks_drawn(part, (slice(None), slice(0, BLOCK // 16)))
    assert count == 16
    assert held < 8
