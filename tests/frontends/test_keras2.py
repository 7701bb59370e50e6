"""Networks that Keras 2 saved as JSON."""

import json
import sys

import numpy as np
import pytest
from tests.frontends.keras_models import keras  # skips where Keras is not installed, or not on torch

import wellposed.keras as wk
from wellposed.errors import InputError, UnsupportedError
from wellposed.frontends.keras.sending import _sent as sent
from wellposed.frontends.keras.worker import rebuilt

ones = {"class_name": "Ones", "config": {}}
zeros = {"class_name": "Zeros", "config": {}}


def layer(kind, name, *nodes, **config):
    return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": list(nodes)}


def entry(name, node=0, place=0, **further):
    return [name, node, place, further]


def given(name, *shape, dtype="float32"):
    return layer("InputLayer", name, batch_input_shape=[None, *shape], dtype=dtype, sparse=False, ragged=False)


def dense(name, units, *nodes, **config):
    return layer("Dense", name, *nodes, units=units, kernel_initializer=ones, bias_initializer=zeros,
                 trainable=True, dtype="float32", activation="linear", use_bias=True, **config)  # fmt: skip


def functional(*stack, inputs, outputs, name="net", kind="Functional"):
    config = {"name": name, "layers": list(stack), "input_layers": inputs, "output_layers": outputs}
    return {"class_name": kind, "config": config, "keras_version": "2.4.0", "backend": "tensorflow"}


def built(told, **settings):
    return wk.from_keras2(json.dumps(told), **settings)


def numbers(model, *arrays):
    return [y.detach().numpy() for y in keras.tree.flatten(model(list(arrays)))]


X, Y = np.array([[1.0, 2.0]], "float32"), np.array([[3.0, 5.0]], "float32")


def test_several_inputs_outputs_merges_and_shared_layers():
    told = functional(
        given("a", 2), given("b", 2),
        dense("shared", 2, [entry("a")], [entry("b")], activity_regularizer=None),
        layer("Subtract", "minus", [entry("shared", 1), entry("shared", 0)]),
        layer("Concatenate", "both", [entry("minus"), entry("a")], axis=-1),
        inputs=[["a", 0, 0], ["b", 0, 0]], outputs=[["both", 0, 0], ["minus", 0, 0]],
    )  # fmt: skip
    model = built(told)
    both, minus = numbers(model, X, Y)
    assert minus.tolist() == [[5, 5]]
    assert both.tolist() == [[5, 5, 1, 2]]
    assert len(model.variables) == 2
    assert model.name == "net"
    assert wk.check(model, plan=wk.plan(model)).ok


@pytest.mark.parametrize("first", [0, 1])
def test_nested_models_whose_calls_are_counted_from_either(first):
    inner = functional(given("i", 2), dense("d", 2, [entry("i")]), inputs=[["i", 0, 0]], outputs=[["d", 0, 0]])
    inner = {**inner, "name": "inner", "inbound_nodes": [[entry("a")], [entry("b")]]}
    inner["config"]["name"] = "inner"
    chain = {
        "class_name": "Sequential", "name": "chain", "inbound_nodes": [[entry("inner", first + 1)]],
        "config": {"name": "chain", "layers": [dense("e", 3)]},
    }  # fmt: skip
    told = functional(
        given("a", 2), given("b", 2), chain, layer("Add", "sum", [entry("inner", first), entry("inner", first + 1)]),
        inner, inputs=[["a", 0, 0], ["b", 0, 0]], outputs={"s": ["sum", 0, 0], "c": ["chain", first, 0]},
    )  # fmt: skip
    chained, summed = numbers(built(told), X, Y)
    assert summed.tolist() == [[11, 11]]
    assert chained.tolist() == [[16, 16, 16]]


def test_sequential_models_neutral_arguments_and_wrappers():
    lstm = {"class_name": "LSTM", "config": {"name": "lstm", "units": 3, "time_major": False, "implementation": 2,
            "return_sequences": True}}  # fmt: skip
    stack = [
        layer(
            "Conv1D", "a/conv", filters=4, kernel_size=[3], groups=1, batch_input_shape=[None, 8, 2], dtype="float32"
        ),
        layer("BatchNormalization", "norm", axis=[2], momentum=0.99, epsilon=0.001, renorm=False, fused=None),
        layer("LeakyReLU", "leaky", alpha=0.25),
        layer("Bidirectional", "both", layer=lstm, merge_mode="concat"),
        layer("TimeDistributed", "each", layer=dense("inner", 5)),
        layer("Flatten", "flat", data_format="channels_last"),
    ]
    model = built({"class_name": "Sequential", "config": {"name": "chain", "layers": stack}})
    assert model.input_shape == (None, 8, 2)
    assert model.output_shape == (None, 30)
    assert [one.name for one in model.layers] == ["a_conv", "norm", "leaky", "both", "each", "flat"]
    assert model.layers[2].negative_slope == 0.25
    assert model.layers[1].axis == 2
    assert built({"class_name": "Sequential", "config": stack}).output_shape == (None, 30)


def test_the_hard_sigmoid_of_keras_2_has_a_slope_of_a_fifth():
    cell = {"class_name": "LSTM", "config": {"name": "lstm", "units": 3, "recurrent_activation": "hard_sigmoid"}}
    stack = [
        dense("first", 2, batch_input_shape=[None, 2]) | {"config": {"name": "first", "units": 2, "use_bias": False,
            "activation": "hard_sigmoid", "kernel_initializer": ones, "batch_input_shape": [None, 2]}},
        layer("Reshape", "steps", target_shape=[2, 1]),
        layer("Bidirectional", "both", layer=cell, merge_mode="sum"),
    ]  # fmt: skip
    model = built({"class_name": "Sequential", "config": {"name": "chain", "layers": stack}})
    sums = np.array([[0.5, 1.0], [-4.0, 1.2], [3.0, 1.0]], "float32")
    expected = np.clip(0.2 * sums.sum(1, keepdims=True) + 0.5, 0, 1) * np.ones((1, 2))
    np.testing.assert_allclose(model.layers[0](sums).detach().numpy(), expected, atol=1e-6)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))  # as a worker does
    for own, variable in zip(again.variables, model.variables, strict=True):
        own.assign(variable.value)
    np.testing.assert_allclose(again(sums).detach().numpy(), model(sums).detach().numpy(), atol=1e-6)
    assert model.layers[2].forward_layer.cell.recurrent_activation(keras.ops.ones(1)).item() == pytest.approx(0.7)


@pytest.mark.slow
def test_a_network_as_deep_as_evolution_makes_them():
    depth = 1300  # calls one after the other: more than Keras can walk within Python's usual limit of recursion
    line = [layer("Activation", "squash", [entry("a")], *([entry("squash", i)] for i in range(depth)),
                  activation="tanh")]  # fmt: skip
    limit = sys.getrecursionlimit()
    model = built(functional(given("a", 2), *line, inputs=[["a", 0, 0]], outputs=[["squash", depth, 0]]))
    assert sys.getrecursionlimit() == limit
    assert len(wk.trace(model)) == depth + 1
    again = rebuilt(sent(model, {}), ())
    assert sys.getrecursionlimit() == limit
    assert len(wk.trace(again)) == depth + 1


def test_tensors_among_further_arguments_are_connected():
    told = functional(
        given("q", 4, 6), given("v", 5, 6),
        layer("MultiHeadAttention", "heads", [entry("q", value=["v", 0, 0], training=None)], num_heads=2, key_dim=3),
        inputs=[["q", 0, 0], ["v", 0, 0]], outputs=[["heads", 0, 0]],
    )  # fmt: skip
    assert built(told).output_shape == (None, 4, 6)


def test_lambdas_come_from_the_user_and_bytecode_is_never_run():
    stack = layer(
        "Lambda", "odd", [entry("a")], function=["4wEAAA==", None, None], function_type="lambda", arguments={}
    )
    told = functional(given("a", 2), stack, inputs=["a", 0, 0], outputs=["odd", 0, 0])
    with pytest.raises(
        UnsupportedError, match=r"layer 'odd' is a Lambda, .* never run: pass lambdas=\{'odd': function"
    ):
        built(told)
    model = built(told, lambdas={"odd": lambda x: x * 3})
    assert model(X).tolist() == [[3, 6]]
    told["config"]["layers"][1] = layer("TFOpLambda", "odd", [entry("a")], function="math.multiply")
    with pytest.raises(
        UnsupportedError, match="layer 'odd' is a TFOpLambda, which Keras 3 does not have: pass lambdas"
    ):
        built(told)
    assert built(told, lambdas={"odd": lambda x: x * 3})(X).tolist() == [[3, 6]]


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ([], InputError, "no model that Keras 2 saved as JSON"),
        ({"class_name": "Mine", "config": {}}, InputError, "a Mine is neither a functional nor a sequential model"),
        (
            functional(given("a", 2), dense("d", 2, [entry("b")]), inputs=["a", 0, 0], outputs=["d", 0, 0]),
            InputError, r"layer 'd' is called with \('b', 0, 0\), which no layer",
        ),
        (
            functional(given("a", 2), dense("d", 2, [entry("a")], sort="odd"), inputs=["a", 0, 0], outputs=["d", 0, 0]),
            UnsupportedError, r"layer 'd' \(Dense\) has sort='odd', an argument that Keras 3",
        ),
        (
            functional(given("a", 2), dense("d", -2, [entry("a")]), inputs=["a", 0, 0], outputs=["d", 0, 0]),
            UnsupportedError, r"layer 'd' \(Dense\) cannot be made",
        ),
        (
            functional(given("a", 2), layer("Conv2D", "c", [entry("a")], filters=1, kernel_size=[1, 1]),
                       inputs=["a", 0, 0], outputs=["c", 0, 0]),
            UnsupportedError, r"layer 'c' \(Conv2D\) cannot be called as in Keras 2",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_named(told, error, message):
    with pytest.raises(error, match=message):
        built(told)
