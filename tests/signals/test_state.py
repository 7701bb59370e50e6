"""Views of states against the same view of every element and every pair of elements."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.signals.driver import dense, dense_moments

from wellposed.signals.distributions.alignment import align
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.making import exchangeable, make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import expand, merge_atoms, permute, pooled, reshape, split_atom
from wellposed.signals.integration import kernels


def example(shape: tuple[int, ...], profiles: tuple[int, ...], seed: int = 0) -> State:
    """A state with a mean and variance of its own at every position, and a product of profiles."""
    draws = np.random.default_rng(seed)
    state = make_state(shape)
    corr = np.ones(())
    for length in profiles:
        corr = np.multiply.outer(corr, 0.7 ** np.arange(length))
    return state.changed(mean=draws.normal(size=shape), var=draws.random(shape) + 0.5, corr=corr)


def correlations(state: State) -> np.ndarray:
    """Correlation of every pair of elements, in the tensor's order: (n, n)."""
    positions = np.array(list(np.ndindex(*state.shape))).reshape(-1, len(state.axes))
    places = []
    for axis, members in enumerate(state.axes):
        rest = positions[:, axis]
        sizes = [state.lengths[i] for i in members]
        for k, i in enumerate(members):
            inner = int(np.prod(sizes[k + 1 :]))
            places.append((i, rest // inner % sizes[k]))
    index, zero = [None] * len(state.lengths), np.zeros((len(positions),) * 2, dtype=bool)
    for i, place in places:
        lag = np.abs(place[:, None] - place[None, :])
        length = state.corr.shape[i]
        index[i] = np.minimum(lag, length - 1)
        if length == 1:
            zero |= lag > 0
    return np.where(zero, 0.0, state.corr[tuple(index)] if index else 1.0)


SHAPE = (4, 6, 3)


@given(st.permutations(range(3)))
def test_permutation_moves_moments_and_correlations(order):
    state = example(SHAPE, (2, 4, 1))
    moved = permute(state, order)
    np.testing.assert_array_equal(dense(moved, moved.mean), dense(state, state.mean).transpose(order))
    flat = np.arange(72).reshape(SHAPE).transpose(order).ravel()
    np.testing.assert_array_equal(correlations(moved), correlations(state)[np.ix_(flat, flat)])


REGROUPED = [
    (24, 3),
    (4, 18),
    (72,),
    (2, 2, 6, 3),
    (4, 2, 3, 3),
    (4, 3, 2, 3),
    (8, 3, 3),
    (4, 6, 1, 3),
    (12, 6),
    (2, 12, 3),
]


@pytest.mark.parametrize("shape", REGROUPED, ids=str)
@pytest.mark.parametrize("profiles", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 2)], ids=str)
def test_regrouping_moves_elements_and_keeps_all_pairs(shape, profiles):
    """With one correlation per atom, every pair of elements keeps its own."""
    state = example(SHAPE, profiles)
    made = reshape(state, shape)
    np.testing.assert_allclose(dense(made, made.mean), dense(state, state.mean).reshape(shape))
    np.testing.assert_allclose(dense(made, made.var), dense(state, state.var).reshape(shape))
    if all(len(a) == 1 for a in reshape(state, shape).axes) and np.prod(profiles) > 1 and len(shape) > 3:
        assert correlations(made).mean() == pytest.approx(correlations(state).mean())
    else:
        np.testing.assert_allclose(correlations(made), correlations(state))
    assert reshape(made, SHAPE).shape == SHAPE


def test_regrouping_a_profile_keeps_the_average_pair():
    state = example((4, 12), (1, 5))
    made = reshape(state, (4, 3, 4))
    assert correlations(made).mean() == pytest.approx(correlations(state).mean())
    assert correlations(made)[0, 1] == pytest.approx(0.7)
    assert merge_atoms(reshape(made, (4, 12)), 1).shape == (4, 12)


def test_regrouping_across_boundaries_keeps_pooled_figures():
    state = example((4, 6), (2, 1))
    made = reshape(state, (3, 8))
    assert made.tag == "approximate"
    assert made.pooled_mean == pytest.approx(state.pooled_mean)
    assert made.second_moment == pytest.approx(state.second_moment)
    mean, var = dense_moments(state)
    std = np.sqrt(var.ravel())
    covariance = correlations(state) * np.outer(std, std)
    whole = kernels.pair_mean(made.covariance(), made.lengths).ravel()[0]
    rest = (covariance.sum() - np.trace(covariance)) / (24 * 23)
    assert whole == pytest.approx((made.pooled_var + 23 * rest) / 24, rel=0.05)  # the kernel averages s_p s_q by lag
    del mean


@pytest.mark.parametrize(("start", "stop", "step"), [(1, 5, 1), (0, 6, 2), (5, 6, 1), (0, 1, 1), (2, 4, 1), (1, 6, 3)])
@pytest.mark.parametrize("length", [1, 2, 6])
def test_a_part_keeps_its_own_pairs(start, stop, step, length):
    state = example(SHAPE, (2, length, 2))
    part = select(state, 1, start, stop, step, drop=False)
    taken = np.arange(72).reshape(SHAPE)[:, start:stop:step].ravel()
    np.testing.assert_allclose(dense(part, part.mean).ravel(), dense(state, state.mean).ravel()[taken])
    np.testing.assert_allclose(correlations(part), correlations(state)[np.ix_(taken, taken)])
    if len(range(start, stop, step)) == 1:
        dropped = select(state, 1, start, stop, step, drop=True)
        assert dropped.shape == (4, 3)
        np.testing.assert_allclose(correlations(dropped), correlations(part))


def test_expansion_repeats_elements():
    state = example((4, 3), (2, 1)).changed(axes=((0,), (), (1,)))
    wide = expand(state, (2, 4, 5, 3))
    source = np.broadcast_to(np.arange(12).reshape(4, 1, 3), (2, 4, 5, 3)).ravel()
    np.testing.assert_allclose(dense(wide, wide.mean).ravel(), dense(state, state.mean).ravel()[source])
    np.testing.assert_allclose(correlations(wide), correlations(state)[np.ix_(source, source)])


def test_splitting_one_atom_keeps_its_elements():
    state = example((12,), (1,))
    halves = split_atom(state, 0, 3, 4)
    assert halves.shape == (12,)
    np.testing.assert_allclose(dense(halves, halves.mean), state.mean)


def test_exchangeable_elements_have_one_correlation():
    state = exchangeable((3, 1, 4), 0.5, 2.0, 0.3)
    matrix = correlations(state)
    np.testing.assert_allclose(matrix, np.where(np.eye(12) > 0, 1.0, 0.3))


def test_concatenation_of_strangers_keeps_blocks():
    a, b = make_state((2, 3), 1.0, 4.0), make_state((2, 5), -1.0, 1.0)
    both = concatenate([a, b], 1)
    mean, var = dense_moments(both)
    np.testing.assert_allclose(mean, [[1.0] * 3 + [-1.0] * 5] * 2)
    np.testing.assert_allclose(var, [[4.0] * 3 + [1.0] * 5] * 2)
    assert both.second_moment == pytest.approx((3 * 5 + 5 * 2) / 8)
    assert select(both, 1, 3, 8, 1, drop=False) is b
    across = select(both, 1, 2, 5, 1, drop=False)
    np.testing.assert_allclose(dense_moments(across)[0], [[1.0, -1.0, -1.0]] * 2)
    assert not pooled(both).blocks


def test_concatenation_of_correlated_elements_keeps_positions():
    a, b = make_state((2, 3), 1.0, 4.0, pairs=(None, 0.5)), make_state((2, 5), -1.0, 1.0)
    both = concatenate([a, b], 1)
    assert not both.blocks
    np.testing.assert_allclose(dense(both, both.mean), [[1.0] * 3 + [-1.0] * 5] * 2)
    expected = (3 * 4.0 + 6 * 2.0 + 5 * 1.0) / 64
    # one correlation stands for all pairs: their average is kept up to the products of deviations
    assert kernels.pair_mean(both.covariance(), both.lengths, [1]).ravel()[0] == pytest.approx(expected, rel=0.15)


def test_broadcast_shapes_are_aligned_axis_by_axis():
    x, y = example((4, 6), (2, 1)), example((6,), (1,), seed=1)
    a, b, layout = align(x, y)
    assert list(layout.lengths) == [4, 6]
    assert layout.axes == ((0,), (1,))
    np.testing.assert_allclose(b.mean, y.mean[None])
    assert b.corr.shape == (2, 1)
    assert b.corr[1, 0] == 1.0  # along the axis that it lacks, y is constant
    np.testing.assert_allclose(a.mean, x.mean)


def test_the_helper_that_enumerates_pairs_agrees_with_samples():
    """The reference of this file, against draws from the matrix that it gives."""
    state = example((3, 4), (2, 3))
    matrix = correlations(state)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9
    for (i, p), (j, q) in itertools.product(enumerate(np.ndindex(3, 4)), repeat=2):
        expected = (0.7 if p[0] != q[0] else 1.0) * 0.7 ** min(abs(p[1] - q[1]), 2)
        assert matrix[i, j] == pytest.approx(expected)
    assert torch.tensor(matrix).isfinite().all()
