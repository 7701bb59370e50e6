"""Correlation kernels and windows against enumeration of all pairs of positions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import wellposed as wp
from wellposed.signals.integration import gaussian, kernels, maps, regrouping, windows
from wellposed.signals.integration.windows import Axis


def entry(length: int, lag: int) -> int | None:
    """Which entry of a profile a displacement falls on (None: uncorrelated)."""
    if lag == 0:
        return 0
    return None if length == 1 else min(lag, length - 1)


def full(profile: np.ndarray, size: int) -> np.ndarray:
    """The matrix over all pairs of positions that a profile stands for."""
    matrix = np.zeros((size, size))
    for p, q in itertools.product(range(size), repeat=2):
        at = entry(profile.size, abs(p - q))
        matrix[p, q] = 0.0 if at is None else profile[at]
    return matrix


profiles = st.integers(2, 9).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.integers(1, size).flatmap(lambda n: st.lists(st.floats(-1, 1), min_size=n, max_size=n).map(np.array)),
    )
)


@given(profiles)
def test_the_mean_over_pairs_is_that_of_the_matrix(case):
    size, profile = case
    matrix = full(profile, size)
    assert kernels.pair_mean(profile, [size])[0] == pytest.approx(matrix.mean(), abs=1e-12)
    off = matrix[~np.eye(size, dtype=bool)].mean()
    assert kernels.off_diagonal_mean(profile, [size], 0)[0] == pytest.approx(off, abs=1e-12)


@pytest.mark.slow
@given(profiles, profiles)
def test_the_mean_over_pairs_of_two_atoms_is_that_of_the_product(first, second):
    kernel = np.multiply.outer(first[1], second[1])
    sizes = [first[0], second[0]]
    expected = np.kron(full(first[1], sizes[0]), full(second[1], sizes[1])).mean()
    assert kernels.pair_mean(kernel, sizes).ravel()[0] == pytest.approx(expected, abs=1e-12)
    over = kernels.pair_mean(kernel, sizes, [1])
    assert over.shape == (kernel.shape[0], 1)
    assert over[0, 0] == pytest.approx(first[1][0] * full(second[1], sizes[1]).mean(), abs=1e-12)


@given(profiles, st.integers(1, 9))
def test_promotion_changes_nothing_and_shortening_keeps_the_mean(case, length):
    size, profile = case
    longer = kernels.promote(profile, [min(max(length, profile.size), size)])
    np.testing.assert_allclose(full(longer, size), full(profile, size))
    if profile.size > 1:
        shorter = kernels.shorten(profile, [size], [max(length, 2)])
        assert shorter.size == min(profile.size, max(length, 2))
        assert full(shorter, size).mean() == pytest.approx(full(profile, size).mean(), abs=1e-12)


@given(st.lists(st.floats(0.1, 3), min_size=2, max_size=8).map(np.array), st.integers(1, 8))
def test_autocorrelation_is_the_mean_product_by_lag(u, length):
    length = min(length, u.size)
    products = np.outer(u, u)
    got = kernels.autocorrelation(u, [length])
    for lag in range(length):
        lags = [lag] if lag < length - 1 or length == 1 else range(lag, u.size)
        expected = np.concatenate([products.diagonal(d) for d in lags]).mean()
        assert got[lag] == pytest.approx(expected), lag


def test_autocorrelation_of_a_product_is_the_product_of_autocorrelations():
    u, v = np.array([1.0, 2.0, 2.0, 1.0]), np.array([0.5, 1.0, 1.5])
    got = kernels.autocorrelation(np.multiply.outer(u, v), [3, 3])
    both = np.multiply.outer(kernels.autocorrelation(u, [3]), kernels.autocorrelation(v, [3]))
    np.testing.assert_allclose(got, both)


def test_autocorrelation_averages_over_both_diagonals():
    u = np.random.default_rng(0).normal(size=(4, 5))
    got = kernels.autocorrelation(u, [4, 5])
    for dy, dx in itertools.product(range(3), range(4)):
        pairs = [
            u[y, x] * u[y + dy, x + s * dx]
            for s in (1, -1)
            for y in range(4 - dy)
            for x in range(5)
            if 0 <= x + s * dx < 5
        ]
        assert got[dy, dx] == pytest.approx(np.mean(pairs)), (dy, dx)


@pytest.mark.parametrize(("outer", "inner"), [(2, 3), (3, 2), (4, 1), (2, 4)])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_splitting_a_profile_keeps_the_mean_of_its_pairs(outer, inner, length):
    size = outer * inner
    profile = np.array([1.0, 0.6, 0.3, -0.1])[: min(length, size)]
    matrix = full(profile, size).reshape(outer, inner, outer, inner)
    got = regrouping.split_profile(profile, 0, outer, inner, 8)
    if length == 1:
        assert got.shape == (1, 1)
        return
    for big, small in itertools.product(range(got.shape[0]), range(got.shape[1])):
        pairs = [
            matrix[a, i, b, j]
            for a, b in itertools.product(range(outer), repeat=2)
            for i, j in itertools.product(range(inner), repeat=2)
            if entry(got.shape[0], abs(a - b)) == big and entry(got.shape[1], abs(i - j)) == small
        ]
        if pairs and (length == 2 or (got.shape[0] == outer and got.shape[1] == inner)):
            assert got[big, small] == pytest.approx(np.mean(pairs)), (big, small)


@pytest.mark.slow
@given(profiles, profiles)
def test_merging_profiles_keeps_the_mean(first, second):
    kernel = np.multiply.outer(first[1], second[1])
    sizes = [first[0], second[0]]
    merged = regrouping.merge_profiles(kernel, 0, sizes)
    expected = np.kron(full(first[1], sizes[0]), full(second[1], sizes[1])).mean()
    assert kernels.pair_mean(merged, [sizes[0] * sizes[1]])[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(4, 3), (3, 5)])
def test_merging_displacements_counts_each_pair_at_its_distance(a, b):
    """Of positions b i + j, each pair counts at its distance, whichever side the inner positions lie on."""
    kernel = np.random.default_rng(0).normal(size=(a, b))
    i, j = np.divmod(np.arange(a * b), b)
    pairs = kernel[np.abs(i[:, None] - i), np.abs(j[:, None] - j)]
    expected = [np.mean(np.diagonal(pairs, d)) for d in range(a * b)]
    np.testing.assert_allclose(regrouping.merge_profiles(kernel, 0, [a, b]), expected, atol=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.lists(st.floats(-1, 1), min_size=1, max_size=6))
def test_polynomials_are_evaluated_as_by_numpy(coefficients, points):
    got = gaussian.polynomial(np.array(coefficients), np.array(points))
    np.testing.assert_allclose(got, np.polyval(coefficients[::-1], points), atol=1e-10)


# ---- windows --------------------------------------------------------------------------------------------------------

axes = st.builds(
    lambda size, kernel, stride, before, dilation: (size, kernel, stride, before, dilation),
    st.integers(3, 9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(1, 2),
).filter(lambda c: c[0] + 2 * c[3] >= c[4] * (c[1] - 1) + 1)


def forward(case) -> Axis:
    size, kernel, stride, before, dilation = case
    return Axis(
        size, windows.output_size(size, kernel, stride, before, before, dilation), kernel, stride, before, dilation
    )


def dense(axis: Axis):
    """How often each output position reads each input position, from the table of taps."""
    index = windows.table(axis)
    matrix = np.zeros((axis.out, axis.size))
    for out, row in enumerate(index):
        np.add.at(matrix[out], row[row >= 0], 1.0)
    return matrix


@given(axes)
def test_windows_read_what_torch_reads(case):
    """Unit impulses through torch's convolution and transposed convolution tell which output reads which input."""
    size, kernel, stride, before, dilation = case
    axis = forward(case)
    impulses = torch.eye(size, dtype=torch.float64)[:, None]
    ones = torch.ones(1, 1, kernel, dtype=torch.float64)
    seen = torch.conv1d(impulses, ones, stride=stride, padding=before, dilation=dilation)[:, 0].T
    np.testing.assert_array_equal(dense(axis), seen.numpy())
    if (size - 1) * stride - 2 * before + dilation * (kernel - 1) + 1 >= 1:
        seen = torch.conv_transpose1d(impulses, ones, stride=stride, padding=before, dilation=dilation)[:, 0].T
        back = Axis(size, seen.shape[0], kernel, stride, before, dilation, transposed=True)
        np.testing.assert_array_equal(dense(back), seen.numpy())


@given(axes, st.booleans())
def test_sums_over_windows_are_products_with_the_matrix(case, varying):
    axis = forward(case)
    q = np.random.default_rng(1).random((2, axis.size if varying else 1))
    expected = np.broadcast_to(q, (2, axis.size)) @ dense(axis).T
    np.testing.assert_allclose(np.broadcast_to(windows.summed(q, 1, axis), expected.shape), expected)


@given(axes, st.integers(2, 5))
def test_shared_taps_are_the_products_of_two_outputs(case, lags):
    """Products that two outputs have in common, in units of the root of both sums."""
    axis = forward(case)
    lags = min(lags, axis.out)
    if axis.out < 2:
        return
    u = np.random.default_rng(2).random(axis.size) + 0.5
    taps = [[u[i] if i >= 0 else 0.0 for i in row] for row in windows.table(axis)]
    got = windows.shared_taps(axis, u, lags)
    for d in range(lags):
        far = d == lags - 1
        pairs = [(p, p + e) for e in (range(d, axis.out) if far else [d]) for p in range(axis.out - e)]
        common = sum(np.dot(taps[p], taps[q]) for p, q in pairs)
        limit = sum(np.sqrt(np.dot(taps[p], taps[p]) * np.dot(taps[q], taps[q])) for p, q in pairs)
        if limit > 0:
            assert got[d] == pytest.approx(common / limit, abs=1e-6), d


@given(st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple), st.integers(1, 3), st.integers(1, 2))
def test_pairs_of_taps_are_counted_by_displacement(taps, stride, dilation):
    lags_in, lags_out = 6, 4
    got = windows.pair_table(taps, stride, dilation, lags_in, lags_out)
    expected = np.zeros((lags_out, lags_in))
    for d in range(lags_out):
        for (a, wa), (b, wb) in itertools.product(enumerate(taps), repeat=2):
            expected[d, min(abs(stride * d + (a - b) * dilation), lags_in - 1)] += wa * wb
    np.testing.assert_allclose(got, expected)


@given(axes, st.booleans())
def test_output_sizes_are_those_of_torch(case, ceil):
    size, kernel, stride, before, dilation = case
    if before > kernel // 2:
        return
    x = torch.zeros(1, 1, size)
    seen = torch.max_pool1d(x, kernel, stride, before, dilation, ceil).shape[-1]
    assert windows.output_size(size, kernel, stride, before, before, dilation, ceil) == seen


def test_kernels_by_pair_agree_with_sums_over_all_pairs() -> None:
    rng = np.random.default_rng(0)
    nodes, channels = 12, 3
    root = rng.normal(size=(nodes, 5))
    covariance = root @ root.T
    std = np.sqrt(np.diag(covariance))
    corr = kernels.by_pair((covariance / np.outer(std, std))[None], 0)[:, :1]
    kernel = corr * kernels.autocorrelation(std[:, None], corr.shape)
    np.testing.assert_allclose(kernel.ravel(), covariance.ravel())
    sizes = (nodes, channels)
    np.testing.assert_allclose(kernels.pair_mean(kernel, sizes, (0,)).item(), covariance.mean())
    np.testing.assert_allclose(kernels.at_zero(kernel, (0,)).item(), np.trace(covariance) / nodes)
    other = (covariance.sum() - np.trace(covariance)) / (nodes * (nodes - 1))
    np.testing.assert_allclose(kernels.off_diagonal_mean(kernel, sizes, 0).item(), other)
    np.testing.assert_allclose(kernels.by_displacement(kernel).ravel(), [np.trace(covariance) / nodes, other])
    with_mean = maps.covariance_with_mean(std[:, None], corr, sizes, (0,))
    np.testing.assert_allclose(with_mean.ravel(), covariance.mean(axis=1))
    values = rng.normal(size=(nodes, 1))
    np.testing.assert_allclose(maps.mean_at_pairs(values, (nodes**2, 1)).ravel(), (0.5 * (values + values.T)).ravel())
    wide = rng.normal(size=(nodes, channels))
    ends = (0.5 * (wide[:, None] + wide[None])).mean(axis=2)
    np.testing.assert_allclose(maps.mean_at_pairs(wide, (nodes**2, 1)).ravel(), ends.ravel(), atol=1e-15)
    longer = kernels.promote(np.array([[1.0], [0.3]]), (nodes**2, 1))
    np.testing.assert_allclose(longer.reshape(nodes, nodes), 0.3 + 0.7 * np.eye(nodes))
    wide = rng.normal(size=(nodes, channels))
    alike = kernels.autocorrelation(wide, (nodes**2, 1))
    np.testing.assert_allclose(alike.reshape(nodes, nodes), wide @ wide.T / channels)


@pytest.mark.parametrize("side", [144, 256, 288])
def test_a_picture_whose_side_is_a_square_is_no_graph(side):
    """A profile of 144 or 256 displacements is as long as the kernel by pair of 12 or 16 nodes."""

    def pooled(side):
        net = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            nn.InstanceNorm2d(64),
        )  # fmt: skip
        graph = wp.trace(net, torch.zeros(1, 3, side, side))
        return [signal.second_moment for signal in wp.propagate(graph, inputs=wp.Input.image(), weights="planned")]

    assert pooled(side) == pytest.approx(pooled(side + 2), rel=0.02)


@pytest.mark.parametrize(("outer", "inner"), [(4, 16), (16, 4), (2, 7), (12, 12)])
def test_pairs_of_a_split_axis_are_those_of_the_whole(outer: int, inner: int) -> None:
    size = outer * inner
    field = np.random.default_rng(0).normal(size=(3, size, size))
    covariance = (field @ field.swapaxes(1, 2)).reshape(3, -1)
    split = regrouping.split_profile(covariance, 1, outer, inner, 64)
    whole = covariance.reshape(3, outer, inner, outer, inner)
    for same_outer in (True, False):
        for same_inner in (True, False):
            chosen = np.ix_(range(3), *(np.arange(n) for n in (outer, inner, outer, inner)))
            _, a, b, c, d = chosen
            mask = np.broadcast_to(((a == c) == same_outer) & ((b == d) == same_inner), whole.shape)
            exact = np.where(mask, whole, 0.0).sum(axis=(1, 2, 3, 4)) / mask[0].sum()
            found = split
            for axis, (n, same) in zip((1, 2), ((outer, same_outer), (inner, same_inner)), strict=True):
                if n < kernels.LEAST:
                    found = np.take(found, [0 if same else 1], axis=axis)
                else:
                    equal = np.eye(n).ravel() == same
                    found = np.compress(equal, found, axis=axis).mean(axis=axis, keepdims=True)
            assert found.ravel() == pytest.approx(exact)
