"""Valleys of loss over rate: where they lie, what is not known of them, and intervals that cover."""

import math

import numpy as np
import pytest

from wellposed.rates.valley import SHARE, change, further, loss_at, valley

START = 2.0


def curve(function, octaves):
    return {2.0**octave: function(octave) for octave in octaves}


def parabola(octave, centre=0.0, curvature=0.1):
    return curvature * (octave - centre) ** 2


def lopsided(octave, centre=0.0):
    u = octave - centre
    return 0.06 * u**2 if u < 0 else 0.4 * u**2 + 0.1 * u**3


def cliff(octave, centre=0.0):
    u = octave - centre
    return None if u > 1.3 else 0.08 * u**2 if u < 0 else 0.03 * u**2


def true_centre(function):
    octaves = np.linspace(-8, 8, 32001)
    losses = [function(octave) for octave in octaves]
    inside = [o for o, loss in zip(octaves, losses, strict=True) if loss is not None and loss <= SHARE * START]
    return (inside[0] + inside[-1]) / 2


@pytest.mark.parametrize("centre", [-0.5, -0.2, 0.0, 0.3])
def test_the_centre_of_a_parabola_is_found(centre):
    found = valley(curve(lambda o: parabola(o, centre), range(-6, 7)), START)
    assert found.centre == pytest.approx(centre, abs=0.05)
    assert found.high - found.low == pytest.approx(2 * math.sqrt(SHARE * START / 0.1), abs=0.2)
    assert (found.below, found.above) == (False, False)


def test_a_flat_floor_does_not_move_the_centre():
    """The argmin goes wherever chance puts it."""
    flat = {2.0**o: 1.0 + 0.01 * (o % 3) for o in range(-3, 4)} | {2.0**-4: 1.9, 2.0**4: 1.9}
    assert valley(flat, START).centre == pytest.approx(0.0, abs=0.05)
    assert min(flat, key=flat.get) != 1.0


def test_a_cliff_leaves_its_place_open():
    falls = valley({0.25: 1.5, 0.5: 0.0, 1.0: 0.0, 2.0: None}, START)
    assert falls.high == 0.5
    assert falls.error > 0.5 / math.sqrt(3) / 2 - 1e-9
    stands = valley({0.25: 1.5, 0.5: 0.0, 1.0: 0.0, 2.0: 1.5}, START)
    assert stands.error < falls.error / 3
    assert falls.gaps == ((-2.0, -1.0), (0.0, 1.0))


def test_losses_above_the_start_count_as_the_start():
    losses = {0.25: 1.0, 0.5: 0.5, 1.0: 0.7}
    assert valley(losses | {2.0: 1e9}, START) == valley(losses | {2.0: None}, START)
    assert loss_at(losses | {2.0: 1e9}, 1.0, START) == START


def test_open_ends_are_told_and_continued():
    falling = valley(curve(lambda o: -0.1 * o, range(5)), START)
    assert (falling.below, falling.above) == (False, True)
    assert further([falling], [{}]) == (False, True)
    assert valley({0.1: 3.0, 0.2: 4.0}, START) is None
    assert further([None], [{0.1: 3.0, 0.2: 4.0}]) == (True, False)
    assert further([None], [{0.1: 4.0, 0.2: 3.0}]) == (False, True)
    assert further([None], [{0.1: None, 0.2: None}]) == (True, False)


def test_change_is_that_of_students_interval():
    """Two sizes: the paired interval."""
    values = np.array([[0.0, 1.0, 3.0], [2.0, 2.5, 5.5]])
    pairs = values[1] - values[0]
    half = 2.919986 * pairs.std(ddof=1) / math.sqrt(3)  # t with 2 degrees of freedom, 95 %
    shift, interval = change(values, 0.9)
    assert shift == pytest.approx(pairs.mean())
    assert interval == pytest.approx((pairs.mean() - half, pairs.mean() + half), rel=1e-5)
    wider = change(values, 0.9, resolution=2.0)[1]
    assert wider[1] - shift == pytest.approx(math.hypot(half, 1.644854 * 2.0), rel=1e-5)


def test_what_seeds_have_in_common_is_no_chance():
    values = np.array([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0]])
    assert change(values, 0.9) == (2.0, (2.0, 2.0))


@pytest.mark.slow
@pytest.mark.parametrize("function", [parabola, lopsided, cliff])
@pytest.mark.parametrize(("noise", "jitter", "seeds", "sizes"), [(0.05, 0.0, 2, 4), (0.0, 0.3, 3, 2)])
def test_intervals_cover_the_true_change_as_often_as_they_say(function, noise, jitter, seeds, sizes):
    """Synthetic curves with noise of the loss, or of where each seed's curve lies: 90 % intervals cover 90 %."""
    random = np.random.default_rng(7)
    repeats, covered, narrow = 200, 0, 0
    for _ in range(repeats):
        wanted, offset = random.uniform(-2, 2), random.uniform(-0.5, 0.5)
        octaves, errors = np.zeros((sizes, seeds)), []
        for size in range(sizes):
            for seed in range(seeds):
                centre = offset + wanted * size / (sizes - 1) + jitter * random.normal()

                def loss(octave, centre=centre):
                    found = function(octave, centre)
                    return None if found is None else found + noise * random.normal()

                losses = curve(loss, range(-6, 7))
                gaps = valley(losses, START).gaps
                found = valley(losses | curve(loss, [(low + high) / 2 for low, high in gaps]), START)
                octaves[size, seed] = found.centre
                errors.append(found.error)
        resolution = math.sqrt(2) * float(np.mean(errors))
        low, high = change(octaves, 0.9, resolution)[1]
        covered += low <= wanted <= high
        low, high = change(octaves, 0.5, resolution)[1]
        narrow += low <= wanted <= high
    chance = 3 * math.sqrt(0.9 * 0.1 / repeats)
    assert covered / repeats > 0.9 - chance
    assert narrow / repeats < 0.8  # an interval that is too narrow is seen to be


@pytest.mark.slow
@pytest.mark.parametrize("function", [parabola, lopsided])
def test_interpolation_is_as_good_as_it_says(function):
    centres = np.linspace(-0.5, 0.5, 21)
    found = [valley(curve(lambda o, c=c: function(o, c), np.arange(-6, 6.5, 0.5)), START) for c in centres]
    misses = [one.centre - true_centre(function) - c for one, c in zip(found, centres, strict=True)]
    assert np.sqrt(np.mean(np.square(misses))) < 3 * np.mean([one.error for one in found])
