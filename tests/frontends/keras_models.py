"""Keras models, one for each layer: what the tests of the front end trace, plan and check.

Whoever imports this is skipped where Keras is not installed, or runs on another backend than torch.
"""

import os
from collections.abc import Callable

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras is not installed: pip install 'wellposed[keras]'")
if keras.config.backend() != "torch":
    pytest.skip(f"Keras runs on {keras.config.backend()}, not on torch", allow_module_level=True)
layers = keras.layers

SIZE = 10
Build = Callable[[], "keras.Model"]


def image(*stack, size=SIZE, channels=3):
    return lambda: keras.Sequential([keras.Input((size, size, channels)), *[make() for make in stack]])


def made(kind, *args, **kwargs):
    return lambda: kind(*args, **kwargs)


def conv(filters=12):
    return made(layers.Conv2D, filters, 3, padding="same")


def dense(units=16):
    return made(layers.Dense, units)


def table(*stack, size=32):
    return lambda: keras.Sequential([keras.Input((size,)), *[make() for make in stack]])


def sequence(*stack, steps=6, size=24):
    return lambda: keras.Sequential([keras.Input((steps, size)), *[make() for make in stack]])


def volume(*stack, size=6, channels=3):
    return lambda: keras.Sequential([keras.Input((size, size, size, channels)), *[make() for make in stack]])


def tokens(*stack, steps=8, vocabulary=50, width=24, **kwargs):
    return lambda: keras.Sequential(
        [
            keras.Input((steps,), dtype="int32"),
            layers.Embedding(vocabulary, width, **kwargs),
            *[make() for make in stack],
        ]
    )


def merged(kind, **kwargs):
    def build():
        x = keras.Input((24,))
        y = keras.Input((24,))
        parts = [layers.Dense(20)(x), layers.Dense(20)(y)]
        return keras.Model([x, y], layers.Dense(10)(kind(**kwargs)(parts)))

    return build


CORE: dict[str, Build] = {
    "Dense": table(dense(24), made(layers.Dense, 16, activation="relu"), dense(8)),
    "Dense without bias": table(made(layers.Dense, 24, use_bias=False), dense(8)),
    "Dense on a sequence": sequence(dense(20), dense(8)),
    "EinsumDense": sequence(made(layers.EinsumDense, "abc,cd->abd", output_shape=(None, 20), bias_axes="d"), dense(8)),
    "EinsumDense heads": sequence(
        made(layers.EinsumDense, "abc,cde->abde", output_shape=(None, 4, 8), bias_axes="de"),
        made(layers.EinsumDense, "abde,dec->abc", output_shape=(None, 24), bias_axes="c"),
    ),
    "Activation": table(dense(24), made(layers.Activation, "tanh"), dense(8)),
    "Embedding": tokens(dense(16)),
    "Embedding mask_zero": tokens(made(layers.LSTM, 12), mask_zero=True),
    "Lambda": table(dense(24), made(layers.Lambda, lambda x: keras.ops.sin(x) * 2.0), dense(8)),
    "Masking": sequence(made(layers.Masking, 0.0), made(layers.LSTM, 12)),
    "Identity": table(dense(24), made(layers.Identity), dense(8)),
}
ACTIVATIONS: dict[str, Build] = {
    name: table(dense(48), made(layers.Activation, name), dense(8))
    for name in (
        "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign", "sigmoid",
        "tanh", "hard_sigmoid", "hard_silu", "hard_tanh", "exponential", "linear", "log_sigmoid", "softmax",
        "log_softmax", "tanh_shrink", "soft_shrink", "hard_shrink", "squareplus", "sparse_plus", "sparse_sigmoid",
        "sparsemax",
    )
}  # fmt: skip
ACTIVATION_LAYERS: dict[str, Build] = {
    "ReLU": table(dense(48), made(layers.ReLU, max_value=6.0, negative_slope=0.1), dense(8)),
    "LeakyReLU": table(dense(48), made(layers.LeakyReLU), dense(8)),
    "PReLU": table(dense(48), made(layers.PReLU, alpha_initializer="uniform"), dense(8)),
    "ELU": table(dense(48), made(layers.ELU), dense(8)),
    "Softmax": table(dense(48), made(layers.Softmax), dense(8)),
}
CONVOLUTION: dict[str, Build] = {
    "Conv1D": sequence(made(layers.Conv1D, 16, 3), made(layers.ReLU), made(layers.Conv1D, 16, 3, padding="causal")),
    "Conv2D": image(conv(), made(layers.ReLU), made(layers.Conv2D, 16, 3, strides=2)),
    "Conv2D same strided": image(conv(), made(layers.Conv2D, 16, 3, strides=2, padding="same")),
    "Conv2D dilated": image(conv(), made(layers.Conv2D, 16, 3, dilation_rate=2)),
    "Conv2D groups": image(conv(), made(layers.Conv2D, 16, 3, groups=4)),
    "Conv3D": volume(made(layers.Conv3D, 12, 3), made(layers.ReLU), made(layers.Conv3D, 8, 2)),
    "DepthwiseConv1D": sequence(made(layers.DepthwiseConv1D, 3, depth_multiplier=2), dense(8)),
    "DepthwiseConv2D": image(conv(), made(layers.DepthwiseConv2D, 3, padding="same"), conv(8)),
    "SeparableConv1D": sequence(made(layers.SeparableConv1D, 16, 3), dense(8)),
    "SeparableConv2D": image(conv(), made(layers.SeparableConv2D, 16, 3), conv(8)),
    "Conv1DTranspose": sequence(made(layers.Conv1DTranspose, 16, 3, strides=2), dense(8)),
    "Conv2DTranspose": image(conv(), made(layers.Conv2DTranspose, 16, 3, strides=2, padding="same"), conv(8)),
    "Conv3DTranspose": volume(made(layers.Conv3DTranspose, 8, 3), dense(8)),
}
POOLING: dict[str, Build] = {
    "MaxPooling1D": sequence(made(layers.Conv1D, 16, 3), made(layers.MaxPooling1D, 2), dense(8)),
    "MaxPooling2D": image(conv(), made(layers.MaxPooling2D, 2), conv(8)),
    "MaxPooling2D same": image(conv(), made(layers.MaxPooling2D, 3, strides=2, padding="same"), conv(8)),
    "MaxPooling3D": volume(made(layers.Conv3D, 8, 3), made(layers.MaxPooling3D, 2), dense(8)),
    "AveragePooling1D": sequence(made(layers.Conv1D, 16, 3), made(layers.AveragePooling1D, 2), dense(8)),
    "AveragePooling2D": image(conv(), made(layers.AveragePooling2D, 2), conv(8)),
    "AveragePooling2D same": image(conv(), made(layers.AveragePooling2D, 3, strides=2, padding="same"), conv(8)),
    "AveragePooling3D": volume(made(layers.Conv3D, 8, 3), made(layers.AveragePooling3D, 2), dense(8)),
    "GlobalMaxPooling1D": sequence(dense(16), made(layers.GlobalMaxPooling1D), dense(8)),
    "GlobalMaxPooling2D": image(conv(), made(layers.GlobalMaxPooling2D), dense(8)),
    "GlobalMaxPooling3D": volume(made(layers.Conv3D, 8, 3), made(layers.GlobalMaxPooling3D), dense(8)),
    "GlobalAveragePooling1D": sequence(dense(16), made(layers.GlobalAveragePooling1D), dense(8)),
    "GlobalAveragePooling2D": image(conv(), made(layers.ReLU), made(layers.GlobalAveragePooling2D), dense(8)),
    "GlobalAveragePooling3D": volume(made(layers.Conv3D, 8, 3), made(layers.GlobalAveragePooling3D), dense(8)),
    "AdaptiveAveragePooling1D": sequence(dense(16), made(layers.AdaptiveAveragePooling1D, 3), dense(8)),
    "AdaptiveAveragePooling3D": volume(made(layers.Conv3D, 8, 3), made(layers.AdaptiveAveragePooling3D, 2), dense(8)),
    "AdaptiveMaxPooling1D": sequence(dense(16), made(layers.AdaptiveMaxPooling1D, 3), dense(8)),
    "AdaptiveMaxPooling3D": volume(made(layers.Conv3D, 8, 3), made(layers.AdaptiveMaxPooling3D, 2), dense(8)),
    "AdaptiveAveragePooling2D": image(conv(), made(layers.AdaptiveAveragePooling2D, 3), conv(8)),
    "AdaptiveMaxPooling2D": image(conv(), made(layers.AdaptiveMaxPooling2D, 3), conv(8)),
}
RECURRENT: dict[str, Build] = {
    "LSTM": sequence(made(layers.LSTM, 16), dense(8)),
    "LSTM sequences": sequence(made(layers.LSTM, 16, return_sequences=True), made(layers.LSTM, 12), dense(8)),
    "LSTM backwards": sequence(made(layers.LSTM, 16, go_backwards=True), dense(8)),
    "LSTM relu": sequence(made(layers.LSTM, 16, activation="relu", recurrent_activation="hard_sigmoid"), dense(8)),
    "LSTM dropout": sequence(made(layers.LSTM, 16, dropout=0.2, recurrent_dropout=0.2), dense(8)),
    "GRU": sequence(made(layers.GRU, 16), dense(8)),
    "GRU reset before": sequence(made(layers.GRU, 16, reset_after=False), dense(8)),
    "GRU sequences": sequence(made(layers.GRU, 16, return_sequences=True), dense(8)),
    "SimpleRNN": sequence(made(layers.SimpleRNN, 16), dense(8)),
    "SimpleRNN unrolled": sequence(made(layers.SimpleRNN, 16, unroll=True), dense(8)),
    "RNN of a cell": sequence(lambda: layers.RNN(layers.LSTMCell(16)), dense(8)),
    "RNN of stacked cells": sequence(lambda: layers.RNN([layers.GRUCell(16), layers.GRUCell(12)]), dense(8)),
    "Bidirectional LSTM": sequence(lambda: layers.Bidirectional(layers.LSTM(12)), dense(8)),
    "Bidirectional GRU sum": sequence(
        lambda: layers.Bidirectional(layers.GRU(12, return_sequences=True), merge_mode="sum"), dense(8)
    ),
    "TimeDistributed": sequence(lambda: layers.TimeDistributed(layers.Dense(16, activation="relu")), dense(8)),
    "ConvLSTM1D": lambda: keras.Sequential([keras.Input((4, 8, 3)), layers.ConvLSTM1D(8, 3), layers.Dense(8)]),
    "ConvLSTM2D": lambda: keras.Sequential([keras.Input((3, 8, 8, 3)), layers.ConvLSTM2D(8, 3), layers.Dense(8)]),
    "ConvLSTM3D": lambda: keras.Sequential([keras.Input((2, 4, 4, 4, 3)), layers.ConvLSTM3D(4, 2), layers.Dense(8)]),
}
NORMALISATION: dict[str, Build] = {
    "BatchNormalization": image(conv(), made(layers.BatchNormalization), made(layers.ReLU), conv(8)),
    "BatchNormalization of a table": table(dense(24), made(layers.BatchNormalization), made(layers.ReLU), dense(8)),
    "BatchNormalization plain": image(conv(), made(layers.BatchNormalization, scale=False, center=False), conv(8)),
    "BatchNormalization axis 1": image(conv(), made(layers.BatchNormalization, axis=1), conv(8)),
    "BatchNormalization frozen": image(conv(), made(layers.BatchNormalization, trainable=False), conv(8)),
    "LayerNormalization": sequence(dense(24), made(layers.LayerNormalization), dense(8)),
    "LayerNormalization of images": image(conv(), made(layers.LayerNormalization), made(layers.ReLU), conv(8)),
    "LayerNormalization axes": image(conv(), made(layers.LayerNormalization, axis=(1, 2, 3)), conv(8)),
    "GroupNormalization": image(conv(), made(layers.GroupNormalization, 4), made(layers.ReLU), conv(8)),
    "GroupNormalization instance": image(conv(), made(layers.GroupNormalization, -1), conv(8)),
    "RMSNormalization": sequence(dense(24), made(layers.RMSNormalization), dense(8)),
    "UnitNormalization": sequence(dense(24), made(layers.UnitNormalization), dense(8)),
    "SpectralNormalization": image(lambda: layers.SpectralNormalization(layers.Conv2D(12, 3)), conv(8)),
    "Normalization": table(lambda: layers.Normalization(mean=1.0, variance=4.0), dense(8)),
    "Rescaling": image(made(layers.Rescaling, 2.0, offset=-0.5), conv(8)),
}
REGULARISATION: dict[str, Build] = {
    "Dropout": table(dense(48), made(layers.Dropout, 0.3), dense(8)),
    "Dropout seeded": table(dense(48), made(layers.Dropout, 0.3, seed=1), dense(8)),
    "Dropout of whole samples": image(
        conv(32),
        made(layers.ReLU),
        made(layers.Dropout, 0.5, noise_shape=(None, 1, 1, 1)),
        made(layers.GlobalAveragePooling2D),
        dense(8),
    ),  # as stochastic depth
    "SpatialDropout1D": sequence(dense(24), made(layers.SpatialDropout1D, 0.3), dense(8)),
    "SpatialDropout2D": image(conv(), made(layers.SpatialDropout2D, 0.3), conv(8)),
    "SpatialDropout3D": volume(made(layers.Conv3D, 8, 3), made(layers.SpatialDropout3D, 0.3), dense(8)),
    "AlphaDropout": table(dense(48), made(layers.AlphaDropout, 0.2), dense(8)),
    "GaussianDropout": table(dense(48), made(layers.GaussianDropout, 0.3), dense(8)),
    "GaussianNoise": table(dense(48), made(layers.GaussianNoise, 0.3), dense(8)),
    "ActivityRegularization": table(dense(48), made(layers.ActivityRegularization, l2=0.1), dense(8)),
}
MERGING: dict[str, Build] = {
    "Add": merged(layers.Add),
    "Subtract": merged(layers.Subtract),
    "Multiply": merged(layers.Multiply),
    "Average": merged(layers.Average),
    "Maximum": merged(layers.Maximum),
    "Minimum": merged(layers.Minimum),
    "Concatenate": merged(layers.Concatenate),
    "Dot": merged(layers.Dot, axes=1),
    "Dot normalised": merged(layers.Dot, axes=1, normalize=True),
}
RESHAPING: dict[str, Build] = {
    "Flatten": image(conv(), made(layers.Flatten), dense(8)),
    "Reshape": table(dense(48), made(layers.Reshape, (6, 8)), dense(8)),
    "Permute": sequence(dense(16), made(layers.Permute, (2, 1)), dense(8)),
    "RepeatVector": table(dense(24), made(layers.RepeatVector, 3), dense(8)),
    "Cropping1D": sequence(dense(24), made(layers.Cropping1D, 1), dense(8)),
    "Cropping2D": image(conv(), made(layers.Cropping2D, ((1, 0), (2, 1))), conv(8)),
    "Cropping3D": volume(made(layers.Conv3D, 8, 3), made(layers.Cropping3D, 1), dense(8)),
    "ZeroPadding1D": sequence(dense(24), made(layers.ZeroPadding1D, 1), dense(8)),
    "ZeroPadding2D": image(conv(), made(layers.ZeroPadding2D, ((1, 0), (2, 1))), conv(8)),
    "ZeroPadding3D": volume(made(layers.Conv3D, 8, 3), made(layers.ZeroPadding3D, 1), dense(8)),
    "UpSampling1D": sequence(dense(24), made(layers.UpSampling1D, 2), dense(8)),
    "UpSampling2D": image(conv(), made(layers.UpSampling2D, 2), conv(8)),
    "UpSampling2D bilinear": image(conv(), made(layers.UpSampling2D, 2, interpolation="bilinear"), conv(8)),
    "UpSampling3D": volume(made(layers.Conv3D, 8, 3), made(layers.UpSampling3D, 2), dense(8)),
    "Resizing": image(made(layers.Resizing, 8, 8), conv(8)),
    "CenterCrop": image(made(layers.CenterCrop, 8, 8), conv(8)),
}


def self_attention(kind, **kwargs):
    def build():
        x = keras.Input((8, 24))
        y = layers.Dense(24)(x)
        return keras.Model(x, layers.Dense(8)(kind(**kwargs)([y, y])))

    return build


def multi_head(kind=layers.MultiHeadAttention, call=None, **kwargs):
    def build():
        x = keras.Input((8, 24))
        y = layers.LayerNormalization()(x)
        return keras.Model(x, layers.Dense(8)(x + kind(**kwargs)(y, y, **(call or {}))))

    return build


ATTENTION: dict[str, Build] = {
    "Attention": self_attention(layers.Attention),
    "Attention scaled": self_attention(layers.Attention, use_scale=True),
    "AdditiveAttention": self_attention(layers.AdditiveAttention),
    "MultiHeadAttention": multi_head(num_heads=3, key_dim=8),
    "MultiHeadAttention causal": multi_head(num_heads=3, key_dim=8, call={"use_causal_mask": True}),
    "MultiHeadAttention dropout": multi_head(num_heads=3, key_dim=8, dropout=0.1),
    "GroupQueryAttention": multi_head(layers.GroupQueryAttention, head_dim=8, num_query_heads=4, num_key_value_heads=2),
}


def several():
    a = keras.Input((16, 16, 3), name="picture")
    b = keras.Input((12,), name="table")
    x = layers.Conv2D(8, 3, activation="relu")(a)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Concatenate()([x, layers.Dense(8, activation="tanh")(b)])
    return keras.Model({"picture": a, "table": b}, {"class": layers.Dense(5)(x), "score": layers.Dense(1)(x)})


def nested():
    def block(width, name):
        x = keras.Input((width,))
        y = layers.LayerNormalization()(x)
        y = layers.Dense(2 * width, activation="gelu")(y)
        return keras.Model(x, x + layers.Dense(width)(y), name=name)

    x = keras.Input((24,))
    y = block(24, "second")(block(24, "first")(x))
    return keras.Model(x, keras.Sequential([layers.Dense(12, activation="relu"), layers.Dense(4)])(y))


def shared():
    x = keras.Input((24,))
    layer = layers.Dense(24, activation="tanh")
    return keras.Model(x, layers.Dense(4)(layer(layer(x))))


class Residual(keras.Model):
    """A subclass with a list of blocks, whose layers have names like one another."""

    def __init__(self):
        super().__init__()
        self.stem = layers.Dense(24)
        self.blocks = [
            keras.Sequential([layers.Dense(48, activation="relu"), layers.Dropout(0.1), layers.Dense(24)])
            for _ in range(3)
        ]
        self.head = layers.Dense(4)

    def build(self, input_shape):
        self.stem.build(input_shape)
        for block in self.blocks:
            block.build((None, 24))
        self.head.build((None, 24))
        self.built = True

    def call(self, x, training=None):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x, training=training)
        return self.head(x)


def subclass():
    model = Residual()
    model.build((None, 16))
    return model


def mixed():
    policy = keras.DTypePolicy("mixed_bfloat16")
    stack = [layers.Dense(32, dtype=policy, activation="relu"), layers.LayerNormalization(dtype=policy)]
    return keras.Sequential([keras.Input((16,)), *stack, layers.Dense(8)])


def operators():
    x = keras.Input((16,))
    y = layers.Dense(24)(x)
    y = keras.ops.relu(y) * 2.0 - keras.ops.mean(y, axis=-1, keepdims=True)
    return keras.Model(x, layers.Dense(4)(y))


def tied():
    x = keras.Input((8,), dtype="int32")
    # a token's own logit is larger than the others; of many tokens it is a small share of the second moment
    table = layers.ReversibleEmbedding(1000, 24)
    y = layers.LayerNormalization()(table(x))
    return keras.Model(x, table(y, reverse=True))


MODELS: dict[str, Build] = {
    "ReversibleEmbedding": tied,
    "several inputs and outputs": several,
    "nested models": nested,
    "a shared layer": shared,
    "a subclass": subclass,
    "mixed precision": mixed,
    "operators between layers": operators,
}
LAYERS: dict[str, Build] = (
    CORE
    | ACTIVATIONS
    | ACTIVATION_LAYERS
    | CONVOLUTION
    | POOLING
    | RECURRENT
    | NORMALISATION
    | REGULARISATION
    | MERGING
    | RESHAPING
    | ATTENTION
    | MODELS
)
