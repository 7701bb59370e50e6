"""Models of Keras and JAX on the command line."""

import json
import subprocess
import sys

import pytest
import torch
from tests.frontends.keras_models import keras, layers  # skips where Keras is not installed, or not on torch

import wellposed as wp
import wellposed.keras as wk
from wellposed import zoo
from wellposed.cli.training import _planned as planned_start
from wellposed.plans import Plan

# Keras' own, as it makes arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FUNCTIONS = """
import keras
import torch
from keras import layers

def build():
    inputs = keras.Input((6, 10))
    return keras.Model(inputs, layers.Dense(4, name="head")(layers.LSTM(8)(inputs)))

def of_any_length():
    model = keras.Sequential([keras.Input((None, 10)), layers.LSTM(8), layers.Dense(4, name="head")])
    return model, keras.ops.zeros((8, 6, 10))

def unbuilt():
    return keras.Sequential([layers.Dense(3)])

def net(depth=1):
    stack = [layers.Dense(16, activation="tanh", name=f"tanh_{i}") for i in range(depth)]
    return keras.Sequential([keras.Input((12,)), *stack, layers.Dense(4)])

def deep():
    return net(6)

def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

def batches():
    generator = torch.Generator().manual_seed(0)
    labels = [torch.randint(0, 4, (16,), generator=generator) for _ in range(6)]
    hot = [torch.nn.functional.one_hot(each, 12).float() for each in labels]
    return [(x + torch.randn(16, 12, generator=generator), y) for x, y in zip(hot, labels)]

def training():
    return net(), loss, batches()

def maker():
    return net, loss, batches()

def convolutional():
    stack = [layers.Reshape((3, 4, 1)), layers.Conv2D(4, 2), layers.BatchNormalization(), layers.Flatten()]
    return keras.Sequential([keras.Input((12,)), *stack, layers.Dense(4)]), loss, batches()

def recurrent():
    model = keras.Sequential([keras.Input((3, 4)), layers.LSTM(8), layers.Dense(4)])
    return model, lambda model, batch: loss(model, (batch[0].reshape(-1, 3, 4), batch[1])), batches()

def flax():
    from flax import nnx
    import jax.numpy as jnp
    return nnx.Linear(3, 4, rngs=nnx.Rngs(0)), jnp.zeros((8, 3))

def applied():
    import jax.numpy as jnp
    import wellposed.jax as wj
    return wj.Function(lambda params, x: x @ params["w"], {"w": jnp.ones((3, 4))}), jnp.zeros((8, 3))
"""


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture
def saved(tmp_path):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 10))
    model = keras.Model(inputs, layers.Dense(4, name="head")(layers.LSTM(8)(inputs)))
    model.save(tmp_path / "model.keras")
    return model, f"keras:{tmp_path / 'model.keras'}"


@pytest.mark.slow
def test_a_saved_model_is_planned_as_in_python(run, saved, tmp_path):
    model, name = saved
    code, _, err = run("plan", name, "--skip", "*/bias", "-o", tmp_path / "plan.json")
    assert code == 0, err
    plan = Plan.load(tmp_path / "plan.json")
    assert plan == wk.plan(model, skip="*/bias")
    assert plan.prescriptions["lstm/lstm_cell/kernel"].reason.startswith("recurrent weights keep")


@pytest.mark.slow
def test_checks_and_reports_take_the_weights_of_the_file(run, saved):
    model, name = saved
    code, out, _ = run("check", name, "--draws", "4", "--json")
    told, own = json.loads(out), wk.check(model, draws=4)
    assert [(one["name"], one["predicted"]) for one in told["nodes"]] == [
        (one.name, pytest.approx(one.predicted)) for one in own.comparisons
    ]
    assert code == (0 if own.ok else 1)
    code, out, err = run("report", name, "--draws", "0", "-O", "target_variance=2.0")
    assert code == 0, err
    assert "head" in out


@pytest.mark.slow
@pytest.mark.parametrize("function", ["build", "of_any_length"])
def test_a_function_returns_a_keras_model(run, net, function):
    code, out, err = run("check", f"{net}:{function}", "--method", "autoinit", "--draws", "4")
    assert code == 0, err + out
    code, out, _ = run("plan", f"{net}:{function}", "--json")
    kept = {name for name, one in json.loads(out)["prescriptions"].items() if one["action"] == "keep"}
    assert {name.rpartition("/")[2] for name in kept} == {"kernel", "recurrent_kernel", "bias"}
    assert len(kept) == 3


def twin(model):
    """The same perceptron in torch, with the same weights."""
    first, last = (torch.nn.Linear(*kernel.shape) for kernel in (model.weights[0], model.weights[2]))
    with torch.no_grad():
        for linear, (kernel, bias) in ((first, model.weights[:2]), (last, model.weights[2:])):
            linear.weight.copy_(kernel.value.T)
            linear.bias.copy_(bias.value)
    return torch.nn.Sequential(first, torch.nn.Tanh(), last)


def test_scores_are_those_of_the_same_model_in_torch(net):
    training = zoo.load_training(f"{net}:training")
    model, batch = training.make(), training.first()
    told = [wp.gradients.gradcosine(one, training.loss_fn, batch, by="parameter")
            for one in (model, twin(model._model[0]))]  # fmt: skip
    own, other = ((one.loss, one.cosine, *(part.norm for part in one.parts.values())) for one in told)
    assert own == pytest.approx(other, rel=1e-4)


@pytest.mark.slow
def test_rates_are_relative_to_those_of_a_base(run, net):
    code, out, err = run("lr", f"{net}:deep", "--base", f"{net}:net", "--base-rate", "0.1", "--json")
    assert code == 0, err
    rates = {row["rule"]: row["rate"] for row in json.loads(out)}
    assert rates["maximal_update"] < 0.1
    assert 0.0 < rates["kernel"] < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("function", ["training", "maker"])
def test_models_of_keras_are_scored_refined_searched_and_compared(run, net, function, tmp_path):
    name = f"{net}:{function}"
    assert run("score", name, "--start", "autoinit")[0] == 0
    code, _, err = run("refine", name, "--start", "autoinit", "--output", tmp_path / "plan.json")
    assert code == 0, err
    assert "sequential/tanh_0/kernel" in Plan.load(tmp_path / "plan.json").prescriptions
    for argv in (("lr", name, "--find"), ("compare", name, "--seeds", "2", "--json")):
        code, _, err = run(*argv, "-O", "steps=5")
        assert code == 0, err


@pytest.mark.slow
def test_models_that_no_stack_can_train_are_searched_and_compared(run, net):
    name = f"{net}:convolutional"
    for argv in (("lr", name, "--find"), ("compare", name, "--seeds", "2", "--json")):
        code, _, err = run(*argv, "-O", "steps=5", "-O", "budget=100")
        assert code == 0, err


@pytest.mark.slow
def test_starts_leave_recurrent_weights_as_keras_draws_them(net):
    training = zoo.load_training(f"{net}:recurrent")
    args = (training.first()[0].reshape(-1, 3, 4), None)
    plan = planned_start(training.make(), args, "autoinit", 0)
    actions = {name.rpartition("/")[2]: one.action for name, one in plan.prescriptions.items() if "lstm" in name}
    assert actions == {"kernel": "keep", "recurrent_kernel": "keep", "bias": "keep"}


@pytest.mark.slow
def test_preparations_leave_recurrent_weights_as_keras_draws_them(run, net, tmp_path):
    code, _, err = run("prepare", f"{net}:recurrent", "--steps", "20", "-O", "budget=40", "-o", tmp_path / "plan.json")
    assert code == 0, err
    plan = Plan.load(tmp_path / "plan.json")
    kept = {name: one.reason for name, one in plan.prescriptions.items() if "lstm" in name}
    assert len(kept) == 3
    assert set(kept.values()) == {"recurrent weights keep their default scheme (Appendix A)"}
    assert plan.prescriptions["sequential/dense/kernel"].action == "write"


@pytest.mark.slow
def test_a_saved_model_is_refused_where_a_training_is_needed(run, saved):
    _, name = saved
    for argv in (("lr", name, "--find"), ("compare", name), ("score", name), ("refine", name)):
        code, _, err = run(*argv, columns=400)
        assert code == 2
        assert "a training is named as path/to/file.py:function, which returns (model, loss_fn, batches)" in err


@pytest.mark.slow
@pytest.mark.parametrize(("function", "name"), [("flax", "kernel"), ("applied", "w")])
def test_a_function_returns_a_model_of_jax(run, net, function, name):
    pytest.importorskip("flax", reason="Flax is not installed: pip install 'wellposed[jax]'")
    code, out, err = run("plan", f"{net}:{function}", "--json")
    assert code == 0, err
    assert json.loads(out)["prescriptions"][name]["action"] == "write"


@pytest.mark.slow
def test_a_model_of_keras_is_built_alike_under_a_seed(run, net):
    told = []
    for seed in (3, 3, 4):
        keras.utils.clear_session(free_memory=False)  # as in a process of its own
        told.append(run("check", f"{net}:build", "--draws", "2", "--json", "--seed", seed)[1])
    first, second, other = told
    assert first == second != other


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keras:nowhere.keras", "there is no file 'nowhere.keras'"),
        ("keras:{net}", "Keras cannot load"),
        ("{net}:unbuilt", "is not built and has no weights yet"),
        ("kers:model", "did you mean 'keras'?"),
    ],
)
def test_what_cannot_be_loaded_is_said(run, net, name, message):
    code, _, err = run("plan", name.format(net=net), columns=400)
    assert code == 2
    assert message in err


@pytest.mark.slow
def test_front_ends_are_imported_where_they_are_needed():
    code = (
        "import sys, torch; from wellposed import zoo; assert zoo.names.front_end(torch.nn.Linear(1, 1)) is None; "
        "assert not {'keras', 'jax', 'flax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert zoo.names.front_end(3) is None
