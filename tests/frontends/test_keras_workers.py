"""Keras on TensorFlow and JAX: models sent to a worker that has Keras on torch, and plans written where they are."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.frontends import keras_models, keras_sent
from tests.frontends.keras_models import keras, layers

import wellposed as wp
import wellposed.keras as wk
from wellposed.errors import OptionError, PlanError, UnsupportedError, WorkerError
from wellposed.frontends.keras import processes, sending, variables, worker
from wellposed.tables import tracked

# Keras' own, as it makes arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def seeded_keras():
    seed()


def seed():
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)


@pytest.fixture(scope="module", params=["jax", "tensorflow"])
def said(request):
    """What a process says that has Keras on another backend."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    environment = {
        **os.environ, "KERAS_BACKEND": request.param, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling well takes longer than running
    }  # fmt: skip
    code = "from tests.frontends.keras_sent import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@cache
def here(function):
    """Return what a function says in this process, once for all backends that it is compared with."""
    seed()
    return function()


def initialised():
    """Return the six models after they were initialised as one, what they were before, and the plan."""
    models, whole = keras_sent.together()
    before = keras_sent.digests(models)
    return models, before, wk.initialize_(whole)


@pytest.mark.slow
def test_plans_and_values_are_those_of_torch_bit_for_bit(said):
    models, before, plan = here(initialised)
    assert wp.Plan.model_validate_json(said["plan"]) == plan
    assert wp.Plan.model_validate_json(said["based"]) == here(keras_sent.planned_on_a_base)
    assert said["digests"] == keras_sent.digests(models)
    assert all(before[name] != digest for name, digest in said["digests"].items())
    frozen = [one for one in plan.prescriptions.values() if one.reason.startswith("left alone: frozen")]
    assert [one.name for one in frozen] == [variable.path for variable in models[2].second.variables]


@pytest.mark.slow
def test_what_a_worker_checks_is_what_is_checked_here(said):
    models, _, _ = here(initialised)
    rng = [np.random.default_rng(draw) for draw in range(12)]
    verdict = wk.check(models[5], inputs=[one.normal(size=(8, 12, 12, 3)).astype("float32") for one in rng], draws=4)
    theirs = json.loads(said["check"])
    assert [node["name"] for node in theirs["nodes"]] == [one.name for one in verdict.comparisons]
    assert theirs["ok"] == verdict.ok
    assert said["unread"] == 100 - 3 * 4, "no more batches are read than can be asked for"


@pytest.mark.slow
def test_a_training_is_prepared_as_here(said):
    own, theirs = here(keras_sent.trained), said["trained"]
    assert theirs["plan"] == own["plan"]
    assert theirs["page"] == own["page"]
    assert theirs["rate"] == own["rate"]
    assert theirs["decayed"] == ["net/dense/kernel", "net/dense_1/kernel"]
    assert theirs["accuracy"] > 0.9


@pytest.mark.slow
def test_gradients_are_scored_and_refined_as_here(said):
    own, theirs = here(keras_sent.agreeing), said["agreeing"]
    assert theirs["actions"] == own["actions"]
    assert theirs["layers"] == ["agreeing/first", "agreeing/last"]
    assert theirs["cosines"] == pytest.approx(own["cosines"], rel=1e-5)  # sums may go in another order
    before, after, *promised = theirs["cosines"]
    assert [before, after] == pytest.approx(promised, rel=1e-5), "what a plan promises is what it comes to"
    assert before != after


@pytest.mark.slow
def test_variables_are_trained_at_the_rates_of_a_plan(said):
    assert said["rated"]["weights"] == pytest.approx(keras_sent.rated_by_hand(), rel=1e-4, abs=1e-5)
    assert said["rated"]["goes_on"]


@pytest.mark.slow
def test_activations_are_shaped_as_on_torch(said):
    assert said["shaped"] == here(keras_sent.shaped)
    assert said["shaped"]["again"]


REFUSED = {
    "died": r"WorkerError: .* exit code 3 .* as it was. Its last lines:\nthese are the last words",
    "hung": "WorkerError: .* no answer within time_limit=0.01 seconds, and was stopped; the model is as it was",
    "limit": "OptionError: time_limit is a number of seconds > 0, got 0",
    "unpicklable": "UnsupportedError: the call cannot be sent to a worker",
    "option": "OptionError: .*kaiming",
    "trace": "UnsupportedError: Keras runs on .* traced on torch only: set KERAS_BACKEND=torch",
    "other": "PlanError: the plan does not fit Sequential",
}


@pytest.mark.slow
def test_what_cannot_be_sent_or_fails_is_said_and_changes_nothing(said):
    for name, message in REFUSED.items():
        told, seconds, same = said[name]
        assert re.match(message, told, re.DOTALL), (name, told)
        assert same, name
        assert name != "hung" or seconds < 5


@pytest.mark.slow
def test_classes_and_functions_that_nobody_can_import_are_planned_as_here(said):
    assert wp.Plan.model_validate_json(said["own"]) == wk.plan(keras_sent.of_own_classes())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the process answers one call elsewhere")
def test_one_process_answers_all_calls_and_is_remade_where_it_died(said):
    assert said["processes"] == [0, 0, 0, 3]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the process answers one call elsewhere")
def test_a_process_ends_with_the_one_that_asks():
    """One that was interrupted has answered another call before it asks again what it is ended in."""
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    environment = {
        **os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONWARNINGS": "ignore::RuntimeWarning",  # JAX's, of the copies, which are made before it is used
    }  # fmt: skip
    rows = [[signal.SIGKILL], [signal.SIGINT, signal.SIGTERM]]
    code = f"from tests.frontends.keras_sent import all_interrupted; all_interrupted({len(rows)})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as asking:
        for signals in rows:
            for number in signals:
                asks, session = asking.stdout.readline().split()
                wait_until(lambda one=session: len(in_session(one)) == 2)  # the process, and its copy that does the job
                os.kill(int(asks), number)
                wait_until(lambda one=session: not in_session(one))
            assert int(asking.stdout.readline()) == -signals[-1]
        rest = asking.communicate()[0]
    assert rest == ""
    assert asking.returncode == 0


def in_session(session):
    """Return the processes of a session that still run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, *rest = entry.read_text().rpartition(")")[2].split()
            found += [entry] if rest[2] == session and state != "Z" else []
    return found


def wait_until(condition, seconds=60):
    last = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < last, "it has not come to be"
        time.sleep(0.1)


# ---- the two ends, without a process between them -------------------------------------------------------------------


def sent(model, **custom_objects):
    made: sending.Sent = pickle.loads(pickle.dumps(sending._sent(model, custom_objects)))
    return made


def test_a_model_comes_out_as_it_was_sent():
    layers.Dense(2), layers.Dense(2)
    model = keras_sent.subclassed()
    model.compile(loss=lambda y, z: 0.0)
    x = np.random.default_rng(0).normal(size=(8, 24)).astype("float32")
    package = sent(model)
    keras.utils.clear_session(free_memory=False)
    keras.config.set_epsilon(1e-7)
    again = worker.rebuilt(package, ())
    assert [v.path for v in again.variables] == [v.path for v in model.variables]
    assert [v.trainable for v in again.variables] == [v.trainable for v in model.variables]
    assert [one.path for one in variables.layers_of(again)] == [one.path for one in variables.layers_of(model)]
    assert np.array_equal(keras.ops.convert_to_numpy(again(x)), keras.ops.convert_to_numpy(model(x)))
    assert wk.plan(again) == wk.plan(model)


def test_settings_of_keras_are_sent():
    keras.config.set_epsilon(1e-3)
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        package = sent(keras_sent.table(layers.Dense(3)))
        keras.config.set_epsilon(1e-7)
        keras.config.set_dtype_policy("float32")
        worker.rebuilt(package, ())
        assert keras.config.epsilon() == 1e-3
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_epsilon(1e-7)
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_are_written_as_on_torch(dtype):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(24, dtype=dtype), layers.Dense(3, dtype=dtype)])
    plan = wk.initialize_(model, center=True)
    own = [v.value.detach().clone() for v in model.variables]
    again = worker.rebuilt(sent(model), ())
    assert all(bool((v.value == value).all()) for v, value in zip(again.variables, own, strict=True))
    for variable in model.variables:
        variable.assign(variable.value * 0 + 3)
    variables.apply_(plan, model, skip="*/dense_1/bias")
    *drawn, last = [v.value for v in model.variables]
    assert all(bool((v == value).all()) for v, value in zip(drawn, own[:-1], strict=True))
    assert bool((last == 3).all())


def test_a_frozen_variable_refuses_a_plan_that_writes_it():
    model = keras_sent.table(layers.Dense(4), layers.Dense(4))
    model.layers[0].trainable = False
    plan = wk.plan(model, frozen=True)
    before = keras_sent.digest(model)
    with pytest.raises(PlanError, match="frozen"):
        variables.apply_(plan, model)
    assert keras_sent.digest(model) == before
    variables.apply_(plan, model, frozen=True)
    assert keras_sent.digest(model) != before


class Forgetful(keras.Model):
    """Its configuration does not say all that it is made from."""

    def __init__(self, width=3, deep=False, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(width)
        self.outer = layers.Dense(2) if deep else None

    def call(self, x):
        return self.inner(x) if self.outer is None else self.outer(self.inner(x))

    def get_config(self):
        return {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"width": 5},
            r"other variables .* at \S*/kernel one of shape \[4, 3\] in the place of \[4, 5\] \(2 and 2 var",
        ),
        ({"deep": True}, r"other layers than it has: none in the place of Dense \(2 and 3 layers\); its get_config"),
    ],
)
def test_a_model_that_comes_out_otherwise_is_refused(settings, message):
    model = Forgetful(**settings)
    model(np.zeros((2, 4), "float32"))
    with pytest.raises(UnsupportedError, match=message):
        worker.rebuilt(sent(model), ())


class Late(keras.Model):
    """It takes two arguments, of which no configuration says the shapes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.left, self.right = layers.Dense(8), layers.Dense(8)

    def call(self, a, b):
        return self.left(a) * keras.ops.sigmoid(self.right(b))


def test_an_example_builds_what_a_configuration_cannot():
    model = Late()
    a, b = np.ones((8, 5), "float32"), np.ones((8, 3), "float32")
    model(a, b)
    assert wk.plan(worker.rebuilt(sent(model), (a, b)), a, b) == wk.plan(model, a, b)


def test_functions_are_sent_as_they_are_and_custom_objects_stand_for_them():
    def half_of_it(x):
        return x / 2

    model = keras_sent.table(layers.Dense(3, activation=lambda x: x), layers.Lambda(half_of_it))
    nameless = model.layers[0].activation
    again = worker.rebuilt(sending._sent(model, {}), ())
    assert again.layers[0].activation is nameless
    assert nameless.__name__ == "<lambda>"
    assert again.layers[1].function is half_of_it
    again = worker.rebuilt(sending._sent(model, {"half_of_it": keras_sent.halved}), ())
    assert again.layers[1].function is keras_sent.halved


def test_two_classes_of_one_name_are_refused():
    def made(factor):
        class Scaled(layers.Layer):
            def call(self, x):
                return factor * x

        return Scaled()

    with pytest.raises(UnsupportedError, match=r"'Scaled', which Sequential 'sequential' is made of, is the name of t"):
        sending._sent(keras_sent.table(made(1.0), made(2.0), layers.Dense(3)), {})


def test_what_a_worker_cannot_build_is_summed_up():
    package = sent(keras_sent.table(layers.Dense(3)))
    config = json.loads(json.dumps(package.config).replace('"units": 3', '"units": -3'))
    with pytest.raises(UnsupportedError, match=r"a worker cannot build Sequential 'sequential' again") as caught:
        worker.rebuilt(replace(package, config=config), ())
    assert len(str(caught.value)) < 800


def test_answers_and_errors_come_back():
    package = sent(keras_sent.table(layers.Dense(3)))
    here, paths = os.getcwd(), list(sys.path)

    def answered(content):
        return pickle.loads(worker.answered(pickle.dumps((here, paths, False, content))))

    def asked(function, **settings):
        return answered(pickle.dumps(sending.Job(package, function, (), settings)))

    settings = {"seed": 0, "only": None, "skip": None, "training": True}
    assert asked(wk._plan, method="kaiming", **settings)[1] == wk.plan(worker.rebuilt(package, ()), method="kaiming")
    kind, error = asked(wk._plan, method="kaimin", **settings)
    assert (kind, type(error)) == ("raised", OptionError)
    kind, error = asked(wk._plan, method="kaiming", seed="x", only=3, skip=None, training=True)
    assert kind == "raised"
    kind, error = asked(keras_sent.unpicklable)
    assert isinstance(error, WorkerError)
    assert "cannot send its answer" in str(error)
    kind, error = answered(b"cnowhere\nnothing\n.")
    assert isinstance(error, UnsupportedError)
    assert "cannot import what it was sent" in str(error)


def walks(_module):
    """Take a step that progress is shown of."""
    list(tracked(range(3), "three steps", shown=True))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="terminals of one process are not those of another elsewhere")
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_the_terminal_of_the_process_that_asks(terminal, monkeypatch, tmp_path):
    processes.close()  # one that was started without a terminal
    reading, writing = os.openpty()
    seen: list[bytes] = []

    def read():
        with suppress(OSError):
            while part := os.read(reading, 1 << 16):
                seen.append(part)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    with open(writing, "w") if terminal else (tmp_path / "errors").open("w") as errors:
        monkeypatch.setattr(sys, "stderr", errors)
        sending.in_worker(keras_sent.table(layers.Dense(3)), walks, (), {})
        monkeypatch.undo()
        processes.close()
    if not terminal:
        os.close(writing)
    reader.join(5)
    shown = b"".join(seen).decode() if terminal else (tmp_path / "errors").read_text()
    assert ("starting Keras on torch" in shown) == terminal
    assert ("three steps" in shown and "3/3" in shown) == terminal
    assert terminal or shown == ""


def test_batches_are_read_as_far_as_they_may_be_asked_for():
    ones = iter([np.ones(3)] * 10)
    assert len(sending._batches(ones, 4)) == 4
    assert len(list(ones)) == 6
    assert len(sending._batches([np.ones(3)], 4)) == 1
    assert [int(batch) for batch in sending._batches(lambda draw: [np.array(7), np.array(8)][draw], 4)] == [7, 8]
    assert sending._batches(wp.Input.white(), 4) == wp.Input.white()
    assert sending._batches(keras.ops.ones((5, 3)).cpu(), 4).shape == (5, 3), "an array is measured"
    assert sending._batches({"x": np.ones((5, 3))}, 4)["x"].shape == (5, 3)
    with pytest.raises(wp.errors.InputError, match="without a single batch"):
        sending._batches([], 4)


def test_another_backend_than_asked_for_is_refused(monkeypatch):
    model = keras_models.table(keras_models.dense(4))()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(UnsupportedError, match="KERAS_BACKEND says jax, but Keras was loaded with torch before"):
        wk.plan(model)
    monkeypatch.setenv("KERAS_BACKEND", "openvino")
    monkeypatch.setattr(keras.config, "backend", lambda: "openvino")
    with pytest.raises(
        UnsupportedError, match=r"Keras runs on openvino, and wellposed.keras takes models on torch, ten"
    ):
        wk.plan(model)
