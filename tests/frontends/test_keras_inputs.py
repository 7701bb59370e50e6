"""Keras models: what is given as inputs of real passes, what a model is called, and copies that train."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from tests.frontends.keras_models import dense, keras, layers, table
from torch.nn import functional

import wellposed as wp
import wellposed.keras as wk
from wellposed.errors import InputError, OptionError, RateError


@pytest.fixture(autouse=True)
def seeded_keras():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def rows(count: int, width: int = 12, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype("float32")


def foreign(array: np.ndarray) -> dict[str, object]:
    """The array, and as other libraries hold it, as far as they are installed."""
    made: dict[str, object] = {"numpy": array, "torch": torch.tensor(array)}
    for library, make in (("jax.numpy", "asarray"), ("tensorflow", "constant")):
        try:
            made[library] = getattr(__import__(library, fromlist=["x"]), make)(array)
        except ImportError:
            continue
    return made


# ---- inputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries, as they hand arrays over
def test_arrays_of_every_library_are_inputs_and_examples():
    model = table(dense(24), dense(4))()
    plan = wk.plan(model)
    seen = {
        tuple(node.measured for node in verdict.comparisons)
        for array in foreign(rows(20, 32)).values()
        for verdict in (wk.check(model, array, plan=plan, inputs=[array], draws=2),)
    }
    assert len(seen) == 1
    told = {wk.plan(model, array, method="autoinit", inputs=array).inputs for array in foreign(rows(20, 32)).values()}
    assert len(told) == 1
    assert told.pop() != wk.plan(model, method="autoinit").inputs


@pytest.mark.slow
def test_batches_may_have_any_size():
    model = table(dense(24), dense(4))()
    assert wk.check(model, inputs=[rows(20, 32)], draws=2).ok
    assert wk.check(model, rows(8, 32), inputs=lambda draw: rows(20, 32, draw), draws=2).ok
    with pytest.warns(UserWarning, match=r"another shape than the first are left out: \(3, 32\) beside \(20, 32\)"):
        seen = wk.measure(model, inputs=[rows(20, 32), rows(3, 32) + 9, rows(20, 32, 1), rows(3, 32) + 9], draws=4)
    assert abs(next(iter(seen)).mean) < 1
    with pytest.raises(InputError, match="without a single batch"):
        wk.check(model, inputs=[])


def test_inputs_are_called_as_the_model_calls_them():
    picture, side = keras.Input((12,), name="picture"), keras.Input((3,), name="side")
    joined = layers.Dense(4)(layers.Concatenate()([picture, side]))
    given = {"picture": rows(20), "side": 5 * rows(20, 3)}
    for inputs in ([picture, side], {"picture": picture, "side": side}):
        model = keras.Model(inputs, joined)
        wide, narrow = (
            wk.measure(model, inputs={**given, "picture": wp.Input.white(var=var)}, draws=2) for var in (9.0, 1e-4)
        )
        assert next(iter(wide)).second_moment > next(iter(narrow)).second_moment
        with pytest.raises(InputError, match=r"has no input 'pictur'; its inputs are 'picture', 'side'"):
            wk.check(model, inputs={"pictur": wp.Input.white()})
    assert wk.check(keras.Model([picture, side], joined), inputs=[given], draws=2).ok


# ---- names and doors ------------------------------------------------------------------------------------------------


def test_a_model_is_called_by_the_name_that_it_was_given():
    stack = [keras.Input((8,)), layers.Dense(3)]
    assert wk.plan(keras.Sequential(stack, name="ranker")).model == "ranker"
    assert [wk.plan(keras.Sequential(stack)).model for _ in range(2)] == ["Sequential"] * 2
    assert wk.report(keras.Sequential(stack, name="ranker"), draws=0).model == "ranker"


def test_functions_for_pytorch_name_those_for_keras():
    model = table(dense(4))()
    for call in (wp.plan, wp.initialize_, wp.check):
        with pytest.raises(InputError, match=r"got Sequential; a model of Keras is for wellposed.keras: .*wk.plan"):
            call(model, torch.zeros(4, 32))
    with pytest.raises(OptionError, match="prepare takes a model of PyTorch, received Sequential; a model of Keras"):
        wp.prepare(model, torch.nn.MSELoss(), [])
    with pytest.raises(RateError, match=r"not Sequential; a model of Keras is for wellposed.keras"):
        wp.rates.find_max_lr(lambda: model, torch.nn.MSELoss(), [torch.zeros(4, 32)])
    with pytest.raises(InputError, match=r"got int$"):
        wp.plan(3)


# ---- copies ---------------------------------------------------------------------------------------------------------


def noisy():
    return keras.Sequential(
        [
            keras.Input((4, 4, 2)), layers.Conv2D(6, 3), layers.BatchNormalization(), layers.Dropout(0.5, seed=3),
            layers.Flatten(), layers.Dense(3),
        ]
    )  # fmt: skip


def test_a_copy_trains_and_leaves_the_model_alone():
    model = noisy()
    before = [variable.value.detach().clone() for variable in model.variables]
    twin = copy.deepcopy(wk.KerasModule(model)).train()
    x, y = torch.randn(64, 4, 4, 2) + 3, torch.randint(0, 3, (64,))
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(twin(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert all(torch.equal(one, now.value) for one, now in zip(before, model.variables, strict=True))


def test_a_pass_carries_statistics_and_seeds_on():
    module = wk.KerasModule(noisy()).train()
    x = torch.randn(64, 4, 4, 2) + 3
    first, second = module(x), module(x)
    assert not torch.equal(first, second), "another mask in each step"
    held = dict(module.named_buffers())
    assert any(bool((tensor != 0).any()) for name, tensor in held.items() if name.endswith("moving_mean"))
    module.eval()
    assert torch.equal(module(x), module(x))
