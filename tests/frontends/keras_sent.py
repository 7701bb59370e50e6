"""Six Keras models for any backend, and what a process on another backend than torch says of them.

`main` prints it as JSON; the tests compare it with what is said on torch.
"""

import hashlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress

if os.environ.get("KERAS_BACKEND") == "jax":
    sys.modules["tensorflow"] = None  # not installed: Keras would load it, which takes seconds, to save a model

import keras
import numpy as np
from keras import layers

import wellposed.keras as wk
from wellposed.errors import WellposedError
from wellposed.frontends.keras import processes
from wellposed.frontends.keras.calls import run


class Residual(keras.Model):
    """Its layers are made and built in its code: in another process they have other names."""

    def __init__(self, width=24, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.first, self.norm, self.second = layers.Dense(width), layers.LayerNormalization(), layers.Dense(width)

    def call(self, x):
        return x + self.second(keras.ops.gelu(self.first(self.norm(x))))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class Deadly(keras.layers.Layer):
    """It ends the process that builds it again from its configuration."""

    def __init__(self, deadly=False, **kwargs):
        super().__init__(**kwargs)
        if deadly:
            print("these are the last words", flush=True)
            sys.exit(3)

    def get_config(self):
        return {**super().get_config(), "deadly": True}


def halved(x):
    return x / 2


def convolutional():
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(),
            layers.Lambda(halved), layers.Dropout(0.1), layers.Flatten(), layers.Dense(5),
        ]
    )  # fmt: skip


def residual():
    x = keras.Input((12, 12, 3))
    y = layers.Conv2D(8, 3, padding="same")(x)
    z = layers.Conv2D(8, 3, padding="same", activation="silu")(layers.BatchNormalization()(y))
    return keras.Model(x, layers.Dense(5)(layers.GlobalAveragePooling2D()(layers.Add()([y, z]))))


def subclassed():
    layers.Dense(3)  # another name for what follows than it has in a process of its own
    model = Residual()
    model(np.zeros((2, 24), "float32"))
    model.second.trainable = False
    return model


def recurrent():
    return keras.Sequential([keras.Input((3, 10)), layers.Bidirectional(layers.LSTM(8)), layers.Dense(4)])


def transformer():
    x = keras.Input((6, 24))
    y = layers.LayerNormalization()(x + layers.MultiHeadAttention(3, 8)(x, x))
    return keras.Model(x, y + layers.Dense(24)(layers.Dense(48, activation="gelu")(y)))


def separable():
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)), layers.SeparableConv2D(8, 3), layers.DepthwiseConv2D(3),
            layers.GroupNormalization(4), layers.Activation("tanh"), layers.GlobalMaxPooling2D(), layers.Dense(4),
        ]
    )  # fmt: skip


def perceptron(depth, width):
    x = keras.Input((6,))
    h = layers.Dense(width)(x)
    for _ in range(depth):
        y = layers.Dense(2 * width, activation="relu")(layers.LayerNormalization()(h))
        h = layers.Add()([h, layers.Dense(width)(y)])
    return keras.Model(x, layers.Dense(3)(layers.LayerNormalization()(h)))


def planned_on_a_base():
    """Return the plan of a model against a smaller one, whose layers Keras counts on from those of the other."""
    return wk.plan(perceptron(8, 16), method="complete_p", base=perceptron(2, 8))


MODELS = [convolutional, residual, subclassed, recurrent, transformer, separable]


def together():
    """Return the six models, and one that is made of all of them, so that one worker is asked about it."""
    rng = np.random.default_rng(0)
    models = [build() for build in MODELS]
    inputs = [keras.Input((24,) if isinstance(model, Residual) else model.input_shape[1:]) for model in models]
    whole = keras.Model(inputs, [model(x) for model, x in zip(models, inputs, strict=True)], name="whole")
    for variable in whole.variables:
        if variable.dtype == "float32":  # backends draw what they start with differently
            variable.assign(rng.uniform(0.2, 1.0, variable.shape).astype("float32"))
    return models, whole


def digest(model):
    """Return the SHA-256 of all values of a model, but for the states of random generators."""
    sha = hashlib.sha256()
    for variable in model.variables:
        if variable.dtype == "float32":
            sha.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value)).tobytes())
    return sha.hexdigest()


def digests(models):
    return {build.__name__: digest(model) for build, model in zip(MODELS, models, strict=True)}


def table(*stack, size=8, **settings):
    return keras.Sequential([keras.Input((size,)), *stack], **settings)


def trained():
    """Return how a start is prepared and what its training comes to, of a model whose penalty counts."""
    x = np.random.default_rng(0).normal(size=(320, 6)).astype("float32")
    y = x[:, :3].argmax(1)
    stack = [layers.Dense(16, "relu", kernel_regularizer="l2"), layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *stack], name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    start = wk.prepare_(model, (x, y), loss, epochs=20, metrics=["accuracy"], progress=False)
    told = model.fit(x, y, epochs=20, verbose=0).history
    return {
        "rate": start.rate.value, "page": str(start), "plan": start.plan.model_dump_json(),
        "accuracy": told["accuracy"][-1], "decayed": [v.path for v in model.trainable_variables
                                                      if model.optimizer._use_weight_decay(v)],
    }  # fmt: skip


def agreeing():
    """Return how well gradients agree, of a model that brings its loss, and what a refinement makes of that."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 6)).astype("float32")
    first = layers.Dense(16, "relu", kernel_regularizer="l2", name="first")
    model = table(first, layers.Dense(3, name="last"), size=6, name="agreeing")
    for variable in model.variables:
        variable.assign(rng.uniform(-0.5, 0.8, variable.shape).astype("float32"))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = [(x, x[:, :3].argmax(1))]
    before = wk.gradcosine(model, data=data, by="layer")
    plan = wk.nio(model, data=data, iterations=20, progress=False)
    wk.apply_(plan, model)
    after = wk.gradcosine(model, data=data)
    return {
        "layers": sorted(before.parts), "actions": {name: one.action for name, one in plan.prescriptions.items()},
        "cosines": [before.cosine, after.cosine, plan.figures["before"]["cosine"], plan.figures["after"]["cosine"]],
    }  # fmt: skip


RATED = 0.05, 0.1


def two_layers():
    """Return numbers to learn from, and the weights of a network of two layers."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)), rng.normal(size=(32, 2))
    weights = [rng.normal(size=shape) for shape in ((6, 24), (24,), (24, 24), (24,), (24, 2), (2,))]
    return x.astype("float32"), y.astype("float32"), [(0.3 * one).astype("float32") for one in weights]


def rated():
    """Return the weights of a network that was trained at the rates of a plan, and whether it goes on after loading."""
    x, y, weights = two_layers()
    stack = [layers.Dense(24, "relu"), layers.Dense(24, "relu"), layers.Dense(2)]
    model = table(*stack, size=6, name="rated")
    model.set_weights(weights)
    plan = wk.plan(model, method="mup")
    rate, decay = RATED
    model.compile(wk.param_groups(plan, model, rate, keras.optimizers.SGD(momentum=0.5), decay), "mse")
    model.fit(x, y, batch_size=32, epochs=5, verbose=0)
    reached = model.get_weights()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    for one in (model, loaded):
        one.fit(x, y, batch_size=32, epochs=3, verbose=0)
    same = all(np.allclose(a, b, rtol=1e-5) for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True))
    return {"weights": np.concatenate([one.ravel() for one in reached]).tolist(), "goes_on": same}


def rated_by_hand():
    """Return the same weights by gradients and steps that are written out."""
    x, y, weights = two_layers()
    weights = [one.astype("float64") for one in weights]
    momenta = [np.zeros_like(one) for one in weights]
    rate, decay = RATED
    n = 24 / 128  # the width over that of the rate
    # of SGD, the widths of the sides over each other: finite to hidden n, hidden to hidden 1, hidden to finite 1/n
    factors, decayed = [n, n, 1.0, n, 1 / n, 1.0], [True, False] * 3
    for _ in range(5):
        w, b, v, c, u, d = weights
        h = np.maximum(x @ w + b, 0)
        k = np.maximum(h @ v + c, 0)
        at_out = 2 * (k @ u + d - y) / y.size
        at_k = at_out @ u.T * (k > 0)
        at_h = at_k @ v.T * (h > 0)
        gradients = [x.T @ at_h, at_h.sum(0), h.T @ at_k, at_k.sum(0), k.T @ at_out, at_out.sum(0)]
        for place, (gradient, factor) in enumerate(zip(gradients, factors, strict=True)):
            shrunk = weights[place] * (1 - rate * decay) if decayed[place] else weights[place]
            momenta[place] = 0.5 * momenta[place] - rate * factor * gradient
            weights[place] = shrunk + momenta[place]
    return np.concatenate([one.ravel() for one in weights]).tolist()


def shaped():
    """Return the slope and the first numbers of a shaped network, and whether it is made again with them."""
    model = table(*[layers.Dense(16, activation="relu") for _ in range(20)], layers.Dense(3))
    found = wk.shape_(model)
    first = next(layer for layer in model.layers if isinstance(getattr(layer, "activation", None), wk.Shaped))
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    x = np.ones((2, *model.input_shape[1:]), "float32")
    wk.plan(model)
    same = np.allclose(model.predict(x, verbose=0), again.predict(x, verbose=0))
    return {"slope": found.slope, "first": first.activation.get_config(), "again": same}


def refused(call, *args, **kwargs):
    """Return the class and message of the error of a call, the seconds that it took, and whether values changed."""
    before, start = digest(args[0]), time.perf_counter()
    try:
        call(*args, **kwargs)
    except WellposedError as error:
        told = f"{type(error).__name__}: {error}"
    else:
        told = "none"
    return told, time.perf_counter() - start, digest(args[0]) == before


def of_own_classes():
    """Return a model of a class, functions and a constant that no other process can import."""

    class Inner(layers.Layer):
        def call(self, x):
            return keras.ops.tanh(x) * half(1.0)

    def half(x):
        return x / 2

    Inner.__module__ = half.__module__ = "__main__"  # as in a notebook
    bent = layers.Dense(8, activation=lambda x: half(keras.ops.relu(x)), name="bent")
    stack = [bent, Inner(name="inner"), layers.Lambda(lambda x: half(x), name="halved"), layers.Dense(3, name="last")]
    return keras.Sequential([keras.Input((8,)), *stack], name="own")


def lifetimes():
    """Return what calls say that end the process or its copy, and which process answers the calls between them.

    It is the same for two calls, after an error and after its copy died; another after it was too late: on JAX while it
    worked, on TensorFlow while it started in the place of one that was killed. All of that is seen in one row of calls,
    as a process takes seconds to start.
    """
    model, seen = table(layers.Dense(3)), []

    def ask():
        wk.plan(model)
        seen.append(processes._running._process.pid)

    ask()
    ask()
    option = refused(wk.plan, model, method="kaimin")
    died = refused(wk.plan, table(Deadly()))
    ask()
    if keras.config.backend() == "tensorflow":
        os.kill(seen[-1], signal.SIGKILL)
        processes._running._process.wait()
    hung = refused(wk.initialize_, model, time_limit=0.01)
    ask()
    return {"option": option, "died": died, "hung": hung, "processes": [seen.index(pid) for pid in seen]}


def waits(_module):
    time.sleep(600)


def interrupted():
    """Ask what takes ten minutes, and print the process that is asked; again after Ctrl-C."""
    model = table(layers.Dense(3))
    while True:
        wk.plan(model)
        print(os.getpid(), processes._running._process.pid, flush=True)
        with suppress(KeyboardInterrupt):
            run(model, waits, (), {})


def all_interrupted(times):
    """Ask as often, each time in a copy of this process, which others end, and print how it ended."""
    for _ in range(times):
        if not (copy := os.fork()):
            interrupted()
        _, status = os.waitpid(copy, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def unpicklable(_module):
    return lambda: 0


def main():
    models, whole = together()
    plan = wk.initialize_(whole)
    keras.utils.clear_session(free_memory=False)
    said = {"based": planned_on_a_base().model_dump_json()}
    said |= {"plan": plan.model_dump_json(), "digests": digests(models)}
    small = models[MODELS.index(separable)]
    batches = (np.random.default_rng(draw).normal(size=(8, 12, 12, 3)).astype("float32") for draw in range(100))
    verdict = wk.check(small, inputs=batches, draws=4)
    keras.utils.clear_session(free_memory=False)
    said |= {"trained": trained(), "agreeing": agreeing(), "rated": rated(), "shaped": shaped()}
    said |= {"check": verdict.to_json(), "unread": sum(1 for _ in batches)}

    said |= {"own": wk.plan(of_own_classes()).model_dump_json()}
    said |= {
        "limit": refused(wk.plan, small, time_limit=0),
        "unpicklable": refused(wk.plan, small, distribution=threading.Lock()),
        "trace": refused(wk.trace, small),
        "other": refused(lambda model: wk.apply_(plan, model), small),
    }
    said |= lifetimes()
    print(json.dumps(said))
