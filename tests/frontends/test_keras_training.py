"""Trainings of Keras models: searched with Keras' own loss and optimizer, prepared, compiled; bad input told."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests.frontends.keras_models import keras, layers

import wellposed as wp
import wellposed.keras as wk
from wellposed.errors import DivergedError, InputError, OptionError, PlanError, RateError
from wellposed.frontends.keras.preparing import course
from wellposed.frontends.keras.training import KerasOptimizer, Recipe, batches_of, training_of
from wellposed.plans import draw
from wellposed.rates.schedule import schedule_factor

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras' own
CROSS_ENTROPY = "sparse_categorical_crossentropy"


@pytest.fixture(autouse=True)
def seeded_keras():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def net(**first: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)), layers.Dense(16, **first), layers.BatchNormalization(), layers.ReLU(),
            layers.Dense(3, activation="softmax"),
        ]
    )  # fmt: skip


def arrays(count: int = 320) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(count, 6)).astype("float32")
    return x, x[:, :3].argmax(1)


def batches(count: int = 10) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = arrays(16 * count)
    return list(zip(np.split(x, count), np.split(y, count), strict=True))


def values(model: Any) -> list[torch.Tensor]:
    return [variable.value.detach().clone() for variable in model.variables]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def prepared(model: Any = None, data: Any = None, loss: Any = CROSS_ENTROPY, optimizer: Any = None, **options: Any):
    given = batches() if data is None else data
    return wk.prepare(net() if model is None else model, given, loss, optimizer, **{"progress": False, **options})


@pytest.fixture(scope="module")
def start() -> Any:
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    return prepared(steps=200, weight_decay=0.1)


# ---- the training of a search is Keras' own -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.AdamW(weight_decay=0.1, global_clipnorm=0.5),
        keras.optimizers.SGD(momentum=0.9, nesterov=True),
        keras.optimizers.Lion(),
    ],
    ids=lambda optimizer: optimizer.name,
)
def test_steps_are_those_of_fit(optimizer):
    model = net(kernel_regularizer="l2")
    data = [(x, y, np.linspace(0.5, 1.5, len(x)).astype("float32")) for x, y in batches()]
    training = training_of(model, data, CROSS_ENTROPY, None, optimizer, 32, 10)
    module = copy.deepcopy(wk.KerasModule(model)).train()
    scored, steps = training.scored(module), KerasOptimizer(training.recipe, module, 0.01)
    model.compile(training.recipe.built(0.01, {}), CROSS_ENTROPY)
    for batch in data:
        loss = scored(module, module.converted(batch))
        module.zero_grad()
        loss.backward()
        steps.step()
        model.reset_metrics()  # what is told is a running mean
        told = model.train_on_batch(*batch)
        assert loss.item() == pytest.approx(told if np.ndim(told) == 0 else told[0], rel=1e-5)
    for name, variable in module.variables.items():
        torch.testing.assert_close(module.held(name), variable.value)


@pytest.mark.slow
def test_losses_of_several_outputs_are_weighed():
    x = keras.Input((6,))
    model = keras.Model(x, {"class": layers.Dense(3, "softmax")(x), "size": layers.Dense(1)(x)})
    losses, weights = {"class": CROSS_ENTROPY, "size": keras.losses.Huber()}, {"class": 1.0, "size": 0.25}
    rows, labels = arrays(16)
    batch = rows, {"class": labels, "size": rows[:, :1]}
    module = wk.KerasModule(model)
    training = pickle.loads(pickle.dumps(training_of(model, [batch], losses, weights, "adam", 32, 1)))
    seen = training.scored(module)(module, module.converted(batch))
    model.compile("sgd", losses, weights)
    assert seen.item() == pytest.approx(model.evaluate(*batch, verbose=0, return_dict=True)["loss"], rel=1e-5)


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradients_agree_as_those_of_the_same_network_of_torch():
    x, y = arrays(24)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = values(model)
    same_net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    for parameter, value in zip(same_net.parameters(), before, strict=True):
        parameter.data.copy_(value.T if value.ndim == 2 else value)
    batch = torch.tensor(x), torch.tensor(y)
    for settings in ({"sub_batches": 3}, {"sub_batches": None}):
        own = wk.gradcosine(model, data=[(x, y)], **settings)
        wanted = wp.gradients.gradcosine(
            same_net, lambda net, b: torch.nn.functional.cross_entropy(net(b[0]), b[1]), batch, **settings
        )
        assert (own.cosine, own.norm, own.loss) == pytest.approx((wanted.cosine, wanted.norm, wanted.loss), rel=1e-4)
    assert same(values(model), before)


@pytest.mark.slow
def test_scales_of_a_plan_are_refined_with_a_loss_that_is_given():
    model = net()
    before, plan = values(model), wk.plan(model)
    refined = wk.nio(model, CROSS_ENTROPY, arrays(), plan=plan, batch_size=64, iterations=4, progress=False)
    assert refined.method == "steady+nio"
    assert same(values(model), before)
    wk.apply_(refined, model)
    assert not same(values(model), before)
    with pytest.raises(OptionError, match="has no loss"):
        wk.nio(model, data=arrays())


# ---- rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compiled_model_brings_its_own_loss_and_optimizer():
    model = net()
    model.compile(keras.optimizers.SGD(0.3, momentum=0.9), CROSS_ENTROPY)
    held, before = model.optimizer, values(model)
    rate = wk.find_max_lr(model, data=batches(), steps=10, budget=80, progress=False)
    assert (rate.conditions.optimizer, rate.conditions.loss) == ("momentum", CROSS_ENTROPY)
    assert model.optimizer is held
    assert same(values(model), before)
    assert float(held.learning_rate.value) == pytest.approx(0.3)
    given = wk.find_max_lr(model, CROSS_ENTROPY, batches(), optimizer="sgd", steps=10, budget=80, progress=False)
    assert given.conditions.optimizer == "sgd"
    assert given.value > 2 * rate.value, "momentum of 0.9 takes ten times the steps"


@pytest.mark.slow
def test_seeds_draw_weights_by_a_plan():
    rate = wk.find_max_lr(net(), CROSS_ENTROPY, batches(), initialize="steady", seeds=2, steps=5, budget=80)
    assert all(len(point.losses) == 2 for point in rate.curve)
    with pytest.raises(OptionError, match="whose weights all seeds would have"):
        wk.find_max_lr(net(), CROSS_ENTROPY, batches(), seeds=2)


# ---- what is prepared -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_prepare_reads_and_prepare_writes_and_compiles(start):
    model = net()
    before = values(model)
    found = prepared(model, steps=200, weight_decay=0.1)
    assert same(values(model), before)
    assert (model.compiled, found.written, found.model is model) == (False, False, True)
    assert found.rate == start.rate
    again = wk.prepare_(
        model, batches(), CROSS_ENTROPY, steps=200, weight_decay=0.1, progress=False, metrics=["accuracy"]
    )
    assert again.written
    assert again.model.optimizer is again.optimizer
    held = {variable.path: variable.value for variable in model.variables}
    assert all(torch.equal(held[name], tensor) for name, tensor in draw(again.plan).items())
    x, y = arrays(160)
    told = model.fit(x, y, batch_size=16, epochs=20, verbose=0).history
    assert told["accuracy"][-1] > 0.8 > told["accuracy"][0]
    assert float(model.optimizer.learning_rate) == pytest.approx(0.0, abs=1e-8)


@pytest.mark.slow
def test_a_compiled_model_keeps_what_it_was_compiled_with():
    model = net()
    model.compile("adam", CROSS_ENTROPY, metrics=["accuracy"], run_eagerly=True)
    start = wk.prepare_(model, batches(), budget=80, progress=False)
    assert start.optimizer.name == "adam"
    assert "accuracy" in model.evaluate(*arrays(32), verbose=0, return_dict=True)
    assert model.run_eagerly


@pytest.mark.slow
def test_decay_is_that_of_the_groups(start):
    start.optimizer.build(start.model.trainable_variables)
    decayed = {v.name for v in start.model.trainable_variables if start.optimizer._use_weight_decay(v)}
    assert decayed == {"kernel"}
    assert start.optimizer.weight_decay == 0.1
    assert "AdamW: 2 variables with decay 0.1, 4 with decay 0" in str(start)
    assert "nothing decays" in str(prepared(optimizer="adam", budget=80))


@pytest.mark.parametrize("name", ["warmup_cosine", "cosine", "linear", "constant"])
def test_schedules_are_those_of_the_search(name):
    made, (_, factor) = course(name, 0.3, 200), schedule_factor(name)
    for step in (0, 1, 10, 20, 21, 100, 199):
        rate = made if name == "constant" else float(made(step))
        assert rate == pytest.approx(0.3 * factor(step / 200), abs=1e-6)
    assert course("warmup_cosine", 0.3, 3)(0) == pytest.approx(0.3), "too short to warm up"


@pytest.mark.slow
def test_clipping_is_searched_and_compiled():
    start = prepared(optimizer="sgd", clip=0.05, steps=100, budget=120)
    assert start.optimizer.global_clipnorm == 0.05
    assert start.rate.conditions.clip == 0.05


def test_a_page_says_what_was_chosen_and_why(start):
    page = " ".join(str(start).split())
    for told in (
        "Start of Sequential, for 200 steps",
        "not written yet: wk.apply_(start.plan, model)",
        "the best lies between",
        "the optimizer's learning_rate follows it",
        "gradients of 4 batches at the start have norms from",
    ):
        assert told in page
    assert max(map(len, str(start).splitlines())) <= 100
    assert '"steps": 200' in start.to_json()


@pytest.mark.slow
def test_own_weights_and_frozen_ones_stay():
    model = net()
    model.layers[0].trainable = False
    start = prepared(model, method="own", budget=80)
    assert "the model's own, as they are" in str(start)
    assert "AdamW: 1 variables with decay 0.004, 3 with decay 0" in str(start)


@pytest.mark.slow
def test_a_trained_model_is_not_written_over():
    model = net()
    model.compile(keras.optimizers.Adam(0.01), CROSS_ENTROPY)
    model.fit(*arrays(160), epochs=60, verbose=0)
    before = values(model)
    with pytest.raises(PlanError, match=r"looks trained.*nothing was written.*method='own' keeps the weights"):
        wk.prepare_(model, batches(), progress=False)
    assert same(values(model), before)


# ---- data -----------------------------------------------------------------------------------------------------------


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return batches()[index]


def test_data_may_be_given_in_every_way():
    pairs = torch.utils.data.TensorDataset(*map(torch.tensor, arrays(160)))
    ways = {
        "list": batches(), "generator": iter(batches()), "dataset": Sequence(),
        "loader": torch.utils.data.DataLoader(pairs, batch_size=16),
    }  # fmt: skip
    found = {name: batches_of(data, 32, 8) for name, data in ways.items()}
    for given in found.values():
        assert len(given) == 8
        for (x, y), (own_x, own_y) in zip(given, batches(), strict=False):
            assert np.array_equal(x, own_x)
            assert np.array_equal(y, own_y)


def test_arrays_are_drawn_at_random_and_in_the_type_of_keras():
    x, y = arrays()
    found = batches_of((x.astype("float64"), y), 32, 4)
    assert [len(part) for part, _ in found] == [32] * 4
    assert found[0][0].dtype == np.float32
    assert not np.array_equal(found[0][0], x[:32])
    assert all(part[:, :3].argmax(1).tolist() == labels.tolist() for part, labels in found)


@pytest.mark.slow
def test_epochs_are_counted_as_steps_where_their_length_is_known():
    assert prepared(data=arrays(100), epochs=3, batch_size=32, budget=80).steps == 12
    assert prepared(epochs=3, budget=80).steps == 30
    with pytest.raises(OptionError, match="does not say how many batches an epoch has: give steps="):
        prepared(data=iter(batches()), epochs=3)


class OwnSteps(keras.Model):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"loss": None}, OptionError, r"Sequential 'sequential' has no loss: give it in the call"),
        ({"optimizer": "adamv"}, OptionError, "Keras has no optimizer 'adamv'; did you mean"),
        ({"optimizer": 3}, OptionError, "a name, a class or an instance, not int"),
        ({"schedule": "warmup_linear"}, OptionError, "Keras has no schedule like 'warmup_linear'"),
        ({"method": "mup"}, OptionError, "a plan by 'mup' has several learning rates"),
        ({"weight_decay": -1.0}, OptionError, "weight_decay"),
        ({"epochs": 0}, OptionError, "epochs must be an integer of at least 1"),
        ({"data": []}, RateError, "not one batch"),
        ({"data": [arrays()[0]]}, RateError, r"a batch is \(x, y\) or \(x, y, sample_weight\), received ndarray"),
        ({"data": (arrays()[0], arrays()[1][:5])}, RateError, r"different numbers of samples: \[5, 320\]"),
        ({"data": 3}, OptionError, r"data is \(x, y\), or batches of them, received int"),
        ({"data": [(x * np.nan, y) for x, y in batches()]}, DivergedError, "the batch holds numbers that are not"),
        ({"model": keras.Sequential([layers.Dense(3)], name="late")}, InputError, "is not built"),
        ({"model": OwnSteps()}, OptionError, "OwnSteps trains by its own train_step, which a search does not follow"),
        ({"model": torch.nn.Linear(2, 2)}, InputError, "got Linear; use wellposed itself for it"),
    ],
)
def test_bad_input_is_told(options, error, told):
    with pytest.raises(error, match=told):
        prepared(**options)


def test_a_plan_may_be_given():
    model = net()
    plan = wk.plan(model, method="xavier")
    assert prepared(model, method=plan, budget=80).plan == plan
    with pytest.raises(OptionError, match="only= is for making a plan, and one is given"):
        prepared(model, method=plan, only="*/kernel")


def test_an_optimizer_may_be_given_in_every_way():
    ways = ["AdamW", "adamw", keras.optimizers.AdamW, keras.optimizers.AdamW(learning_rate=7.0)]
    configs = [{**Recipe.of(way).serialized["config"], "learning_rate": 0, "name": ""} for way in ways]
    assert all(config == configs[0] for config in configs)


def test_losses_of_classes_that_nobody_can_import_are_sent_as_they_are():
    class Scaled(keras.losses.Loss):
        def __init__(self, scale=1.0, **settings):
            super().__init__(**settings)
            self.scale = scale

        def call(self, y, z):
            return self.scale * keras.ops.mean((y - z) ** 2, axis=-1)

        def get_config(self):
            return {**super().get_config(), "scale": self.scale}

    cloudpickle = pytest.importorskip("cloudpickle")
    x, y = np.ones((4, 6), "float32"), np.zeros((4, 3), "float32")
    setup = training_of(net(), (x, y), {"a": Scaled(3.0), "b": lambda y, z: z}, None, "adam", 4, 1)
    again = pickle.loads(cloudpickle.dumps(setup))
    assert float(again.loss["a"](y, y + 2)) == 12.0
    assert again.loss["b"](1, 2) == 2


@pytest.mark.slow
def test_functions_for_pytorch_take_the_front_end():
    """What no compiled loss says is searched with a loss of one's own."""
    rate = wp.rates.find_max_lr(
        wk.KerasModule(net()),
        lambda module, batch: torch.nn.functional.nll_loss((module(batch[0]) + 1e-6).log(), batch[1]),
        [tuple(map(torch.tensor, batch)) for batch in batches()],
        seeds=1,
        steps=5,
        budget=60,
        progress=False,
    )
    assert rate.value > 0
