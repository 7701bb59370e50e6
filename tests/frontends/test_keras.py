"""Keras models on the torch backend: traced, planned and checked like PyTorch's, and left as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from benchmarks.nets import images, keras_images
from tests.frontends.keras_models import LAYERS, Residual, conv, dense, image, keras, layers, sequence, table
from tests.frontends.keras_sent import perceptron
from torch import nn

import wellposed as wp
import wellposed.keras as wk
from wellposed.errors import InputError, OptionError, PlanError, TraceError, UnsupportedError
from wellposed.frontends.base import unique
from wellposed.frontends.keras.whole import whole_operators
from wellposed.graphs import run
from wellposed.plans import draw


@pytest.fixture(autouse=True)
def seeded_keras():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


def value(variable) -> np.ndarray:
    return variable.value.detach().numpy().copy()


def values(model) -> list[np.ndarray]:
    return [value(variable) for variable in model.variables]


def randomised(model):
    """The model with other numbers in every variable that is no counter: statistics are positive."""
    for variable in model.variables:
        if variable.dtype.startswith("float"):
            variable.assign(keras.random.uniform(variable.shape, 0.2, 1.0))
    return model


# ---- the battery ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_traced_planned_and_as_predicted(name):
    model = LAYERS[name]()
    before = values(model)
    plan = wk.plan(model)
    trained = {id(v) for layer in model._flatten_layers() for v in layer._trainable_variables}
    assert list(plan.prescriptions) == unique(v.path for v in model.variables if id(v) in trained)
    verdict = wk.check(model, plan=plan)
    assert verdict.ok, verdict.summary()
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model), strict=True))


@pytest.mark.slow
def test_the_battery_holds_every_kind_of_layer():
    """Every public layer that has numbers to follow stands in a specification, or is listed with the reason."""
    used = {type(layer).__name__ for build in LAYERS.values() for layer in build()._flatten_layers()}
    without = {
        "AugMix", "AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "CutMix", "Equalization",
        "MaxNumBoundingBoxes", "MelSpectrogram", "MixUp", "Pipeline", "RandAugment", "STFTSpectrogram", "Solarization",
        # these change pictures and sounds before a model sees them
        "CategoryEncoding", "Discretization", "HashedCrossing", "Hashing", "IntegerLookup", "StringLookup",
        "TextVectorization",  # these make features that are no signals
        "FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper",  # other frameworks' code, refused by name
        "Layer", "Wrapper",  # to be derived from
    }  # fmt: skip
    public = {
        kind.__name__
        for name, kind in vars(layers).items()
        if isinstance(kind, type) and issubclass(kind, keras.Layer) and not name.startswith("Random")
    }
    assert public - used - without == set()
    assert without <= public - used


# ---- whole operators ------------------------------------------------------------------------------------------------

WHOLE = {
    "Dense": table(lambda: layers.Dense(6, activation="tanh")),
    "Dense on a sequence": sequence(lambda: layers.Dense(6)),
    "EinsumDense": sequence(lambda: layers.EinsumDense("abc,cd->abd", output_shape=(None, 6), bias_axes="d")),
    "EinsumDense into heads": sequence(
        lambda: layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 3), bias_axes="de")
    ),
    "EinsumDense with one bias for each head": sequence(
        lambda: layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 3), bias_axes="d")
    ),
    "EinsumDense from heads": sequence(
        lambda: layers.Reshape((6, 4, 6)),
        lambda: layers.EinsumDense("abcd,cde->abe", output_shape=(None, 5), bias_axes="e"),
    ),
    "EinsumDense over steps": sequence(
        lambda: layers.EinsumDense("abc,bd->adc", output_shape=(5, None), bias_axes="d")
    ),
    "Conv1D causal": sequence(lambda: layers.Conv1D(5, 3, padding="causal", activation="relu")),
    "Conv2D": image(lambda: layers.Conv2D(5, 3)),
    "Conv2D same strided": image(lambda: layers.Conv2D(5, 3, strides=2, padding="same")),
    "Conv2D groups dilated": image(lambda: layers.Conv2D(6, 3, groups=3, dilation_rate=2)),
    "Conv3D": lambda: keras.Sequential([keras.Input((4, 4, 4, 3)), layers.Conv3D(5, 2)]),
    "DepthwiseConv1D": sequence(lambda: layers.DepthwiseConv1D(3, depth_multiplier=2)),
    "DepthwiseConv2D": image(lambda: layers.DepthwiseConv2D(3, padding="same")),
    "SeparableConv1D": sequence(lambda: layers.SeparableConv1D(24, 3)),
    "SeparableConv2D": image(lambda: layers.SeparableConv2D(3, 3)),
    "Conv1DTranspose": sequence(lambda: layers.Conv1DTranspose(5, 3, strides=2)),
    "Conv2DTranspose same": image(lambda: layers.Conv2DTranspose(5, 3, strides=2, padding="same")),
    "Conv2DTranspose padded": image(lambda: layers.Conv2DTranspose(5, 2, strides=3)),
    "Conv2DTranspose with output padding": image(
        lambda: layers.Conv2DTranspose(5, 3, strides=2, padding="same", output_padding=1)
    ),
    "Conv3DTranspose": lambda: keras.Sequential([keras.Input((4, 4, 4, 3)), layers.Conv3DTranspose(5, 2)]),
    "BatchNormalization": image(lambda: layers.BatchNormalization()),
    "BatchNormalization of a table": table(lambda: layers.BatchNormalization(epsilon=0.1)),
    "BatchNormalization axis 1": image(lambda: layers.BatchNormalization(axis=1)),
    "BatchNormalization axis 2": image(lambda: layers.BatchNormalization(axis=2)),
    "BatchNormalization plain": image(lambda: layers.BatchNormalization(scale=False, center=False)),
    "BatchNormalization frozen": image(lambda: layers.BatchNormalization(trainable=False)),
    "BatchNormalization renormalised": image(lambda: layers.BatchNormalization(renorm=True)),
    "GroupNormalization": image(lambda: layers.Conv2D(12, 1), lambda: layers.GroupNormalization(4)),
    "GroupNormalization axis 1": sequence(lambda: layers.GroupNormalization(3, axis=1)),
    "SpectralNormalization": image(lambda: layers.SpectralNormalization(layers.Conv2D(5, 3), power_iterations=2)),
    "GroupNormalization instance": image(lambda: layers.GroupNormalization(-1, epsilon=0.1)),
}
AS_KERAS_HAS_THEM = {
    "EinsumDense with one bias for each head", "EinsumDense over steps", "Conv2DTranspose padded",
    "Conv2DTranspose with output padding", "BatchNormalization frozen", "BatchNormalization renormalised",
}  # fmt: skip


ROUNDINGS = 100
"""Roundings of the largest number by which sums of up to 3,000 terms may differ when they are made in other orders."""


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_operators_give_the_numbers_of_keras(name, training):
    model = randomised(WHOLE[name]())
    x = keras.random.normal((4, *model.input_shape[1:]))
    given = [(variable, variable.value.detach().clone()) for variable in model.variables]
    with keras.StatelessScope(given):
        own = model(x, training=training)
    with keras.StatelessScope(given), whole_operators():
        whole = model(x, training=training)
    assert whole.dtype == own.dtype
    assert float((whole - own).abs().max()) <= ROUNDINGS * torch.finfo(own.dtype).eps * float(own.abs().max())


def test_a_kernel_of_zeros_is_not_normalised():
    model = table(lambda: layers.SpectralNormalization(layers.Dense(5, kernel_initializer="zeros")))()
    module = wk.KerasModule(model)
    graph = wk.trace(model)
    (seen,) = run(graph, parameters=dict(module.named_parameters()), buffers=dict(module.named_buffers()))
    assert graph.engine == "meta"
    assert bool((seen == 0).all())


@pytest.mark.parametrize("name", sorted(WHOLE.keys() - AS_KERAS_HAS_THEM))
def test_whole_operators_say_what_their_parameters_are(name):
    plan = wk.plan(WHOLE[name]())
    roles = {path.rpartition("/")[2]: p.role for path, p in plan.prescriptions.items()}
    wanted = {"bias": "bias", "gamma": "gain", "beta": "shift"}
    assert {key: roles[key] for key in roles.keys() & wanted.keys()} == {
        key: wanted[key] for key in roles.keys() & wanted.keys()
    }


@pytest.mark.parametrize("together", [None, (None, 1, 1, 1), (40, None, 1, 5)])
def test_whole_dropout_drops_as_often_and_as_much_as_keras(together):
    layer = layers.Dropout(0.3, noise_shape=together, seed=1)
    x = keras.random.uniform((40, 30, 20, 5), 1.0, 2.0)
    kept = []
    for block in (nullcontext(), whole_operators()):
        with keras.StatelessScope([(v, v.value) for v in layer.variables]), block:
            y = layer(x, training=True)
        assert bool(((y == 0) | ((y - x / 0.7).abs() <= 4 * torch.finfo(y.dtype).eps)).all())
        share = (y != 0).float()
        for axis, size in enumerate(together or ()):
            if size == 1:
                assert bool((share.std(axis) == 0).all())
                share = share.narrow(axis, 0, 1)
        kept.append(share)
        assert abs(float(share.mean()) - 0.7) <= 5 * (0.21 / share.numel()) ** 0.5
    assert kept[0].shape == kept[1].shape


def test_whole_operators_exist_only_while_tracing():
    before = {kind: kind.call for kind in (layers.Dense, layers.Conv2D, layers.BatchNormalization)}
    model = image(conv(4), lambda: layers.BatchNormalization())()
    ran = []

    def keep(layer, *args, **kwargs):
        ran.append(layer)
        return before[layers.BatchNormalization](layer, *args, **kwargs)

    layers.BatchNormalization.call = keep
    try:
        wk.KerasModule(model)(torch.randn(2, 10, 10, 3))
        assert len(ran) == 1, "outside of a trace Keras' own operators run"
        with pytest.raises(TraceError):
            wk.trace(model, np.zeros((2, 10, 10, 4), "float32"))
        assert layers.BatchNormalization.call is keep
    finally:
        layers.BatchNormalization.call = before[layers.BatchNormalization]
    assert {kind: kind.call for kind in before} == before


# ---- what a trace is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "name", ["BatchNormalization", "LSTM", "MultiHeadAttention", "several inputs and outputs", "a subclass"]
)
def test_a_graph_gives_the_models_own_outputs(name, training):
    model = randomised(LAYERS[name]())
    for layer in model._flatten_layers():
        if isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    module = wk.KerasModule(model)
    example = module.example()
    graph = wk.trace(model, *example, training=training)
    own = module.train(training)(*example)  # which writes no statistics
    seen = run(graph, parameters={name: parameter.tensor for name, parameter in graph.parameters.items()})
    for one, other in zip(seen, keras.tree.flatten(own), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-5)  # sums of float32 in other orders


def test_names_are_those_of_keras():
    x = keras.Input((24,))
    twice = layers.Dense(24, name="twice")
    normed = layers.BatchNormalization(name="norm")(twice(twice(x)))
    model = keras.Model(x, keras.Sequential([layers.Dropout(0.1), layers.Dense(4, name="head")], name="top")(normed))
    graph = wk.trace(model)
    assert list(graph.parameters) == [
        "twice/kernel", "twice/bias", "norm/gamma", "norm/beta", "top/head/kernel", "top/head/bias",
    ]  # fmt: skip
    assert set(graph.buffers) >= {"norm/moving_mean", "norm/moving_variance"}
    names = [node.name for node in graph]
    assert {"twice", "twice@2", "norm", "top/dropout", "top/head"} <= set(names)
    assert graph["top/head"].module_class == "Dense"
    assert graph.model == "Functional"


def test_variables_of_one_path_have_names_of_their_own():
    assert unique(["a", "b", "a", "a#2", "a"]) == ["a", "b", "a#2", "a#2#2", "a#3"]
    x = keras.Input((8,))
    y = layers.Dense(8, name="same")(x)
    inner = keras.Model(x, y)
    model = keras.Model(x, layers.Dense(8, name="same")(inner(x)))
    plan = wk.plan(model)
    assert list(plan.prescriptions) == ["same/kernel", "same/bias", "same/kernel#2", "same/bias#2"]
    wk.apply_(plan, model)
    kernels = [value(v) for v in model.variables if v.name == "kernel"]
    assert not np.array_equal(*kernels)


def test_pictures_have_their_channels_last():
    plan = wk.plan(image(conv(4), size=16)())
    assert plan.inputs == "0: image-like (1/f), mean 0, variance 1"


@pytest.mark.slow
def test_random_numbers_follow_the_seed_of_a_check():
    """Keras makes a generator for every draw, which a graph would share between its runs."""
    model = table(dense(24), lambda: layers.Dropout(0.3, seed=1), lambda: layers.GaussianNoise(0.5), dense(8))()
    graph = wk.trace(model)
    first, second, other = (wp.measure(graph, seed=seed, draws=2) for seed in (3, 3, 4))
    assert [s.second_moment for s in first] == [s.second_moment for s in second]
    assert all(s.second_moment != o.second_moment for s, o in zip(first, other, strict=True) if "noise" in s.name)


def test_seeds_and_statistics_stay_as_they_are():
    model = image(conv(4), lambda: layers.BatchNormalization(), lambda: layers.Dropout(0.3, seed=1))()
    before = values(model)
    wk.trace(model)
    wk.KerasModule(model)(torch.randn(2, 10, 10, 3))
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model), strict=True))


# ---- plans ----------------------------------------------------------------------------------------------------------


class Twin(nn.Module):
    """The PyTorch model that `test_a_plan_is_that_of_the_same_model_in_torch` compares with."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1)
        self.norm = nn.BatchNorm2d(12, eps=1e-3)
        self.wide = nn.Conv2d(12, 16, 3)
        self.group = nn.GroupNorm(4, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.tanh(self.norm(self.conv(x)))
        x = nn.functional.gelu(self.group(self.wide(x)))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("method", ["autoinit", "kaiming", "mup"])
def test_a_plan_is_that_of_the_same_model_in_torch(method):
    model = image(
        conv(),
        lambda: layers.BatchNormalization(),
        lambda: layers.Activation("tanh"),
        lambda: layers.Conv2D(16, 3),
        lambda: layers.GroupNormalization(4, epsilon=1e-5),
        lambda: layers.Activation(lambda x: keras.ops.gelu(x, approximate=False)),
        lambda: layers.GlobalAveragePooling2D(),
        lambda: layers.Dense(5),
        size=16,
    )()
    plan = wk.plan(model, method=method)
    twin = wp.plan(Twin(), torch.randn(8, 3, 16, 16), method=method)
    for ours, theirs in zip(plan.prescriptions.values(), twin.prescriptions.values(), strict=True):
        assert (ours.role, ours.action, ours.fan_in, ours.fan_out, ours.lr_multiplier) == (
            (theirs.role, theirs.action, theirs.fan_in, theirs.fan_out, theirs.lr_multiplier)
        )
        assert ours.distribution == theirs.distribution
        if ours.distribution != "constant":
            assert ours.std == pytest.approx(theirs.std, rel=1e-9), (ours.name, theirs.name)


def test_initialize_writes_the_plan_into_the_variables():
    model = image(conv(4), lambda: layers.BatchNormalization(), lambda: layers.Flatten(), dense(5))()
    randomised(model)
    plan = wk.initialize_(model, seed=3)
    drawn = draw(plan)
    seen = {variable.path: value(variable) for variable in model.variables}
    assert drawn.keys() == {p.name for p in plan.prescriptions.values() if p.action == "write"}
    for name, tensor in drawn.items():
        assert np.array_equal(seen[name], tensor.numpy()), name
    again = values(model)
    wk.apply_(plan, randomised(model))
    assert all(np.array_equal(a, value(v)) for a, v in zip(again, model.variables, strict=True) if v.path in drawn)


def test_frozen_variables_are_kept():
    model = table(dense(24), dense(8))()
    model.layers[0].trainable = False
    before = value(model.layers[0].kernel)
    plan = wk.initialize_(model)
    frozen, free = model.layers[0].kernel.path, model.layers[1].kernel.path
    assert plan.prescriptions[frozen].reason.startswith("left alone: frozen")
    assert plan.prescriptions[free].action == "write"
    assert np.array_equal(before, value(model.layers[0].kernel))
    assert wk.plan(model, frozen=True).prescriptions[frozen].action == "write"
    with pytest.raises(PlanError, match="frozen"):
        wk.apply_(wk.plan(model, frozen=True), model)


def test_recurrent_layers_keep_what_keras_draws():
    model = sequence(lambda: layers.Bidirectional(layers.LSTM(8)), dense(4))()
    before = {variable.path: value(variable) for variable in model.variables}
    plan = wk.initialize_(model, skip="*/bias")
    changed = [
        variable.path for variable in model.variables if not np.array_equal(before[variable.path], value(variable))
    ]
    assert changed == [model.layers[1].kernel.path]
    kept = [p for name, p in plan.prescriptions.items() if "lstm_cell" in name]
    assert len(kept) == 6
    assert {p.reason for p in kept} == {"recurrent weights keep their default scheme (Appendix A)"}


def test_options_reach_the_method():
    model = table(dense(24), dense(8))()
    name = model.layers[0].kernel.path
    assert wk.plan(model, distribution="uniform").prescriptions[name].distribution == "uniform"
    assert wk.plan(model, only="*/kernel").prescriptions[name.replace("kernel", "bias")].action == "keep"
    with pytest.raises(OptionError, match="distributoin"):
        wk.plan(model, distributoin="uniform")


# ---- inputs ---------------------------------------------------------------------------------------------------------


def test_batches_are_what_the_model_is_called_with():
    model = LAYERS["several inputs and outputs"]()
    rng = np.random.default_rng(0)

    def batch(_=0):
        return {
            "picture": rng.normal(2.0, 1.0, (8, 16, 16, 3)).astype("float32"),
            "table": rng.normal(0.0, 3.0, (8, 12)).astype("float32"),
        }

    plan = wk.plan(model)
    assert wk.check(model, batch(), plan=plan, inputs=[batch() for _ in range(3)]).ok
    assert wk.check(model, batch(), plan=plan, inputs=batch).ok
    assert wk.check(model, plan=plan, inputs=wp.Input.white(var=4.0)).ok
    seen = wk.measure(model, inputs=[batch() for _ in range(3)], draws=3)
    pictures = next(signal for signal in seen if signal.name.startswith("conv2d"))
    assert pictures.mean == pytest.approx(2.0, abs=5 / (3 * 8 * 16 * 16 * 3) ** 0.5)
    with pytest.raises(TraceError, match="expects 2 named input"):
        wk.check(model, plan=plan, inputs=[batch()["table"]])


def test_models_of_several_arguments_are_planned_and_checked():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.left, self.right = layers.Dense(8), layers.Dense(8)

        def call(self, a, b):
            return self.left(a) * keras.ops.sigmoid(self.right(b))

    model = Two()
    a, b = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    model(a, b)
    with pytest.raises(InputError, match="does not say what inputs it takes: pass an example"):
        wk.plan(model)
    plan = wk.plan(model, a, b)
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=a.shape), rng.normal(size=b.shape)) for _ in range(2)]
    batches = [tuple(part.astype("float32") for part in batch) for batch in batches]
    assert wk.check(model, a, b, plan=plan, inputs=batches).ok


@pytest.mark.slow
def test_models_are_explained_and_reported():
    model = table(dense(24), lambda: layers.ReLU(), dense(8))()
    node = wk.trace(model)[f"{model.layers[0].path}"].name
    assert node in wk.explain(model, node, draws=2).summary()
    report = wk.report(model, draws=2, options={"target_variance": 2.0})
    assert report.model == "Sequential"
    assert report.plan.options["target_variance"] == 2.0
    assert report.failure is None
    assert report.judgement.call in ("wk.find_max_lr(model, loss, data)", "wk.initialize_(model, x)")
    recurrent = wk.report(sequence(lambda: layers.GRU(8))(), draws=0)
    assert all(p.action == "keep" for p in recurrent.plan.prescriptions.values())


# ---- bad input ------------------------------------------------------------------------------------------------------


def test_what_is_no_built_model_is_refused():
    with pytest.raises(InputError, match="takes a Keras model, got Linear; use wellposed itself"):
        wk.plan(nn.Linear(2, 2))
    with pytest.raises(InputError, match="takes a Keras model, got int"):
        wk.plan(3)
    with pytest.raises(InputError, match=r"Sequential 'fresh' is not built .* call it once on a batch"):
        wk.plan(keras.Sequential([layers.Dense(3)], name="fresh"))


def test_a_layer_that_is_not_built_is_refused():
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(3, name="inner")

        def call(self, x):
            return self.inner(x)

    model = Late()
    with pytest.warns(UserWarning, match="does not have a `build"):
        model.build((None, 4))
    with pytest.raises(InputError, match=r"Late 'late' is not built and has no weights yet: call it once on a batch"):
        wk.plan(model)
    assert not model.inner.built
    model(np.zeros((2, 4), "float32"))
    assert wk.check(model, plan=wk.plan(model)).ok


def test_one_layer_that_is_not_built_is_named():
    class Partly(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.inner = layers.Dense(4), layers.Dense(3, name="inner")

        def build(self, input_shape):
            self.first.build(input_shape)
            self.built = True

        def call(self, x):
            return self.inner(self.first(x))

    model = Partly()
    model.build((None, 4))
    with pytest.raises(TraceError, match=r"layer 'inner' \(Dense\) is not built .* call the model once on a batch"):
        wk.plan(model)


def test_lengths_that_are_not_known_need_an_example():
    model = keras.Sequential([keras.Input((None, 5)), layers.Dense(3)])
    with pytest.raises(InputError, match=r"shape \(None, None, 5\) has axes of any length: pass an example"):
        wk.plan(model)
    assert wk.plan(model, np.zeros((8, 7, 5), "float32")).prescriptions


def test_a_trace_on_another_backend_is_refused(monkeypatch):
    model = table(dense(4))()
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(UnsupportedError, match=r"Keras runs on jax .* KERAS_BACKEND=torch before keras is"):
        wk.trace(model)


@pytest.mark.slow
def test_a_backend_that_is_not_installed_is_named():
    code = "import sys; sys.modules['tensorflow'] = None; import wellposed.keras"
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert "UnsupportedError: Keras looks for a backend that is not installed (tensorflow" in done.stderr
    assert "set KERAS_BACKEND=torch before keras is imported" in done.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras', as it quantises
def test_layers_that_cannot_be_traced_are_refused_by_name():
    model = keras.Sequential([keras.Input((4,)), layers.TorchModuleWrapper(nn.Linear(4, 4), name="foreign")])
    with pytest.raises(UnsupportedError, match=r"layer 'foreign' \(TorchModuleWrapper\) .* wraps a torch module"):
        wk.plan(model)
    model = table(lambda: layers.Dense(4, name="small"))()
    model.layers[0].quantize("int8")
    with pytest.raises(UnsupportedError, match=r"layer 'small' \(Dense\) .* is quantised \(int8\)"):
        wk.plan(model)


def test_a_plan_for_another_model_is_refused():
    plan = wk.plan(table(lambda: layers.Dense(4, name="one"))())
    model = table(lambda: layers.Dense(4, name="two"))()
    before = values(model)
    with pytest.raises(PlanError, match=r"the plan does not fit Sequential: .*two/kernel"):
        wk.apply_(plan, model)
    with pytest.raises(PlanError, match="two/kernel"):
        wk.check(model, plan=plan)
    assert all(np.array_equal(a, b) for a, b in zip(before, values(model), strict=True))


def test_a_subclass_that_knows_its_shapes_needs_no_example():
    model = Residual()
    model.build((None, 16))
    assert wk.trace(model).values[0].shape == (8, 16)


# ---- networks of the benchmarks -------------------------------------------------------------------------------------


TWINS = {
    "All-CNN-C": images.all_cnn_c,
    "ResNet-56": lambda: images.preact_resnet(56),
    "ResNet-56 without norms": lambda: images.preact_resnet(56, bn=False),
    "ResNet-164": lambda: images.preact_resnet(164),
    "ResNet-164 without norms": lambda: images.preact_resnet(164, bn=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_networks_of_the_paper_are_those_of_pytorch(name):
    with torch.device("meta"):
        twin = TWINS[name]()
    with keras.device("meta"):
        model = keras_images.NETWORKS[name](keras)
    sizes = sorted(parameter.numel() for parameter in twin.parameters())
    assert sorted(np.prod(variable.shape) for variable in model.trainable_variables) == sizes
    assert set(TWINS) == set(keras_images.NETWORKS)


def test_signals_of_layers_are_those_of_passes():
    inputs = keras.Input(keras_images.SHAPE, name="input")
    x = layers.Flatten(name="flat")(inputs)
    x = layers.Dense(4, name="out", kernel_initializer="ones", bias_initializer="ones")(x)
    with torch.no_grad():
        seen = keras_images.layer_signals(keras, iter([keras.Model(inputs, x)] * 6))
    assert list(seen) == ["input", "flat", "out"]
    assert seen["flat"] == pytest.approx(seen["input"])
    number = 6 * keras_images.BATCH
    assert abs(seen["out"]["mean"] - 1) < 5 * (3072 / number) ** 0.5
    error = (2 / (number - 1)) ** 0.5 / np.log(2)  # of the square of one number for each sample
    assert abs(np.log2(seen["out"]["square"] / 3073)) < 5 * error


# ---- a smaller model as base -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("cleared", [False, True])
def test_a_base_is_matched_however_keras_counts_its_layers(cleared):
    small = perceptron(2, 8)
    if cleared:  # both models have a dense_5: one ends a branch there, the other is the readout
        keras.utils.clear_session(free_memory=False)
    large = perceptron(8, 16)
    before = values(small)
    plan = wk.plan(large, method="complete_p", base=small)
    numbers = wk.plan(large, method="complete_p", base_depth=2, base_width=8)
    assert plan.prescriptions == numbers.prescriptions
    assert plan.options["base"] == "Functional"
    report = wk.report(large, method="complete_p", options={"base": small}, draws=0)
    assert report.plan.prescriptions == plan.prescriptions
    assert all(np.array_equal(a, b) for a, b in zip(before, values(small), strict=True))


@pytest.mark.slow
def test_signals_tell_the_similarity_of_samples():
    model = keras.Sequential([keras.Input((128,)), *(layers.Dense(128, "relu") for _ in range(3))])
    x = np.zeros((8, 128), "float32")
    plan = wk.plan(model, x)
    compared = [c for c in wk.check(model, x, plan=plan).comparisons if "relu" in c.op]
    measured = wk.measure(model, x, plan=plan)
    assert [c.similarity_measured for c in compared] == [s.similarity for s in measured if "relu" in s.op]
    assert len(compared) == 3
    assert all(abs(c.similarity_error) <= c.similarity_allowed for c in compared)
