"""The rates of plans in optimizers of Keras: the numbers of each variable, schedules, callbacks, saving, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.frontends import keras_models, keras_sent

import wellposed as wp
import wellposed.keras as wk
from wellposed.errors import InputError, OptionError, PlanError, UnsupportedError

keras, layers = keras_models.keras, keras_models.layers
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(autouse=True)
def seeded_keras():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def net(width: int = 32) -> Any:
    stack = [layers.Dense(width, "relu"), layers.Dense(width, "relu"), layers.LayerNormalization(), layers.Dense(3)]
    return keras.Sequential([keras.Input((6,)), *stack], name="net")


def residual(depth: int, width: int) -> Any:
    x = keras.Input((6,))
    stream = layers.Dense(width)(x)
    for _ in range(depth):
        inner = layers.Dense(width, "relu")(layers.LayerNormalization()(stream))
        stream = layers.Add()([stream, layers.Dense(width)(inner)])
    return keras.Model(x, layers.Dense(3)(layers.LayerNormalization()(stream)))


def arrays() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(64, 6)).astype("float32")
    return x, x[:, :3].argmax(1)


def fitted(model: Any, optimizer: Any = None, epochs: int = 2, **settings: Any) -> list[np.ndarray]:
    """Return the weights of a model after a training, compiled anew where an optimizer is given."""
    if optimizer is not None:
        model.compile(optimizer, LOSS)
    model.fit(*arrays(), batch_size=16, epochs=epochs, shuffle=False, verbose=0, **settings)
    return model.get_weights()


def rates(optimizer: Any) -> list[float]:
    return [float(one.learning_rate) for one in optimizer.optimizers]


def agree(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one, other, strict=True))


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("method", "clip"), [("mup", None), ("complete_p", None), ("complete_p", 0.1)])
def test_every_variable_is_trained_as_by_an_optimizer_of_its_own(method, clip):
    model = residual(4, 32)
    plan = wk.plan(model, method=method, **({} if method == "mup" else {"base": residual(2, 8)}))
    optimizer = wk.param_groups(plan, model, 0.01, keras.optimizers.AdamW(global_clipnorm=clip), 0.1)
    start = model.get_weights()
    grouped = fitted(model, optimizer)
    model.set_weights(start)
    module = wk.KerasModule(model)
    wanted = {
        name: group
        for group in plan.param_groups(module, 0.01, torch.optim.AdamW([torch.zeros(1)], eps=1e-7), 0.1)
        for name in group["param_names"]
    }
    assert len({group["lr"] for group in wanted.values()}) > 1
    assert len({group["carried"] for group in wanted.values()}) == (1 if method == "mup" else 2)
    alone = {
        name: keras.optimizers.AdamW(one["lr"], weight_decay=one["weight_decay"], epsilon=one.get("eps", 1e-7))
        for name, one in wanted.items()
    }
    x, y = arrays()
    for _ in range(2):
        for rows, labels in zip(np.split(x, 4), np.split(y, 4), strict=True):
            model.zero_grad()
            LOSS(labels, model(rows, training=True)).backward()
            gradients = {name: one.value.grad for name, one in module.variables.items()}
            norm = sum(float((one * wanted[name]["carried"]).square().sum()) for name, one in gradients.items()) ** 0.5
            for name, variable in module.variables.items():
                alone[name].apply([gradients[name] * (1.0 if clip is None else min(1, clip / norm))], [variable])
    assert agree(model.get_weights(), grouped)


@pytest.mark.slow
def test_decay_and_the_norm_of_all_gradients_are_those_of_one_optimizer():
    model = net()
    plan, start = wk.plan(model), model.get_weights()
    one = keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.1)
    grouped = fitted(model, wk.param_groups(plan, model, 0.01, one))
    model.set_weights(start)
    one.exclude_from_weight_decay(var_list=[v for v in model.trainable_variables if len(v.shape) < 2])
    assert agree(fitted(model, one), grouped)
    model.set_weights(start)
    assert not agree(fitted(model, keras.optimizers.AdamW(0.01, weight_decay=0.1)), grouped)


def test_the_network_that_other_backends_train_is_trained_as_by_hand():
    """What `test_keras_workers` compares with is right."""
    assert keras_sent.rated()["weights"] == pytest.approx(keras_sent.rated_by_hand(), rel=1e-4, abs=1e-5)


def test_one_group_is_a_plain_optimizer():
    model = net()
    optimizer = wk.param_groups(wk.plan(model), model, 0.02, keras.optimizers.SGD(momentum=0.9))
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert float(optimizer.learning_rate) == pytest.approx(0.02)
    assert optimizer.momentum == 0.9
    assert wk.param_groups(wk.plan(model), model, 0.02, "adamw").optimizers[0].weight_decay == 0.004  # Keras' own


# ---- schedules, callbacks, saving -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule",
    [
        keras.optimizers.schedules.CosineDecay(0.001, 20, alpha=0.1, warmup_target=0.05, warmup_steps=4),
        keras.optimizers.schedules.CosineDecayRestarts(0.05, 5, m_mul=0.5),
        keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.5, staircase=True),
        keras.optimizers.schedules.InverseTimeDecay(0.05, 5, 0.5),
        keras.optimizers.schedules.PiecewiseConstantDecay([5, 10], [0.05, 0.02, 0.01]),
        keras.optimizers.schedules.PolynomialDecay(0.05, 12, 0.004, power=2.0),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_schedules_keep_the_proportions_of_rates(schedule):
    model = net()
    plan = wk.plan(model, method="mup")
    fixed = rates(wk.param_groups(plan, model, 1.0, "sgd"))
    assert len(set(fixed)) > 1
    inner = wk.param_groups(plan, model, schedule, "sgd").optimizers
    for step in (0, 2, 7, 13):
        seen = [float(one._learning_rate(step)) for one in inner]
        assert seen == pytest.approx([factor * float(schedule(step)) for factor in fixed], rel=1e-5)


@pytest.mark.slow
def test_callbacks_change_the_rate_of_each_group():
    model = net()
    optimizer = wk.param_groups(wk.plan(model, method="mup"), model, 0.05, "sgd")
    before = rates(optimizer)
    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    fitted(model, optimizer, callbacks=[halved])
    assert rates(optimizer) == pytest.approx([rate / 4 for rate in before], rel=1e-5)


@pytest.mark.slow
def test_a_model_that_was_saved_goes_on_as_it_would_have(tmp_path):
    model = net()
    schedule = keras.optimizers.schedules.CosineDecay(0.05, 40)
    fitted(model, wk.param_groups(wk.plan(model, method="mup"), model, schedule, keras.optimizers.Adam()))
    model.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert [v.path for v in loaded.variables] != [v.path for v in model.variables], "Keras gives others"
    assert agree(fitted(model), fitted(loaded))


@pytest.mark.slow
def test_variables_may_be_frozen_later():
    model = net()
    plan = wk.plan(model, method="mup")
    optimizer = wk.param_groups(plan, model, 0.05, "sgd")
    model.layers[0].trainable = False
    before = model.get_weights()
    after = fitted(model, optimizer)
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [True] * 2 + [False] * 6
    frozen = wk.param_groups(plan, model, 0.05, "sgd")
    model.layers[0].trainable = True
    assert not np.array_equal(fitted(model, frozen)[0], after[0])


# ---- bad input ------------------------------------------------------------------------------------------------------


class Own(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1 / (step + 1)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"lr": Own()}, OptionError, "received Own: give the first rate, and a keras.callbacks.LearningRateScheduler"),
        ({"lr": "fast"}, OptionError, "lr is a number or a schedule of keras.optimizers.schedules, received str"),
        ({"lr": -1.0}, OptionError, "lr must be"),
        ({"optimizer": "adamv"}, OptionError, "Keras has no optimizer 'adamv'; did you mean"),
        ({"optimizer": "lamb"}, UnsupportedError, "no groups for 'lamb'"),
        ({"optimizer": "ftrl"}, OptionError, "unknown optimizer 'ftrl'"),
        ({"optimizer": "muon"}, UnsupportedError, "Keras' Muon trains what is no hidden matrix by Adam"),
        ({"weight_decay": -1.0}, OptionError, "weight_decay"),
        ({"model": net}, InputError, "takes a Keras model, got function"),
        ({"model": "other"}, PlanError, "the plan does not fit Sequential"),
        (
            {"optimizer": keras.optimizers.SGD(global_clipnorm=1.0, gradient_accumulation_steps=2)},
            OptionError,
            "global_clipnorm and gradient_accumulation_steps do not go together",
        ),
    ],
)
def test_bad_input_is_told(options, error, told):
    model = net()
    plan = wk.plan(model, method="mup")
    given = {"model": model, "lr": 0.1, "optimizer": "sgd", **options}
    if given["model"] == "other":
        given["model"] = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    with pytest.raises(error, match=told):
        wk.param_groups(plan, **given)


def test_an_optimizer_whose_steps_are_like_anothers_is_taken():
    model = net()
    plan = wk.plan(model, method="mup")
    assert rates(wk.param_groups(plan, model, 0.1, "ftrl", family="sgd")) == rates(
        wk.param_groups(plan, model, 0.1, "sgd")
    )


def test_another_model_is_refused_when_it_is_trained():
    model = net()
    optimizer = wk.param_groups(wk.plan(model, method="mup"), model, 0.05, "sgd")
    with pytest.raises(PlanError, match=r"8 trained variables, from 'net/dense/kernel' of shape \(6, 32\) on, and is"):
        fitted(net(16), optimizer)


def test_plans_name_the_function_for_keras():
    with pytest.raises(InputError, match=r"of Keras, wellposed.keras.param_groups\(plan, model, lr, optimizer\)"):
        wp.plan(torch.nn.Linear(2, 2), torch.ones(1, 2)).param_groups("a model", 0.1)
