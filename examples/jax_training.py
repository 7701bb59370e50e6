"""A training in JAX from nothing: a function of parameters and a module of Flax NNX, prepared in one call each.

The network has sixteen layers and no norms. Its parameters are given as shapes, and drawn as the plan says.

    python examples/jax_training.py
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import wellposed.jax as wj

CLASSES, SIZE, LAYERS, STEPS = 4, 64, 16, 80
LOSS = optax.softmax_cross_entropy_with_integer_labels


def batches(seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield noisy patterns of variance 1, as plans assume it, and which pattern each is."""
    patterns = np.random.default_rng(0).normal(size=(CLASSES, SIZE))
    rng = np.random.default_rng(seed)
    while True:
        labels = rng.integers(0, CLASSES, 32)
        noisy = patterns[labels] + 2 * rng.normal(size=(32, SIZE))
        yield (noisy / 5**0.5).astype("float32"), labels


def apply(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x @ params[-1]["kernel"] + params[-1]["bias"]


def shapes() -> list[dict[str, jax.Array]]:
    """Return parameters of zeros, which are drawn anew."""
    sizes = [SIZE] * LAYERS + [CLASSES]
    return [{"kernel": jnp.zeros(pair), "bias": jnp.zeros(pair[1])} for pair in pairwise(sizes)]


def train(start: wj.JaxStart) -> Any:
    """Return the parameters after the training that was prepared."""

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, Any]:
        gradients = jax.grad(lambda params: LOSS(apply(params, x), y).mean())(params)
        updates, state = start.optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params, state = start.params, start.optimizer.init(start.params)
    for _, batch in zip(range(start.steps), batches(seed=1), strict=False):
        params, state = step(params, state, *batch)
    return params


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.List([nnx.Linear(SIZE, SIZE, rngs=rngs) for _ in range(LAYERS - 1)])
        self.head = nnx.Linear(SIZE, CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.hidden:
            x = jnp.tanh(layer(x))
        return self.head(x)


def loss_of(model: Net, batch: tuple[jax.Array, jax.Array]) -> jax.Array:
    return LOSS(model(batch[0]), batch[1]).mean()


@nnx.jit
def nnx_step(model: Net, optimizer: nnx.Optimizer, batch: tuple[jax.Array, jax.Array]) -> None:
    optimizer.update(model, nnx.grad(loss_of)(model, batch))


def recognised(model: Any) -> float:
    """Return the share of unseen patterns that are recognised."""
    x, y = next(batches(seed=2))
    return float((model(x).argmax(1) == y).mean())


def main() -> None:
    start = wj.prepare(apply, shapes(), LOSS, batches(seed=1), "adamw", steps=STEPS, zeros="write", progress=False)
    print(start)
    params = train(start)
    print(f"a function: {recognised(lambda x: apply(params, x)):.0%} of unseen patterns are recognised")

    model = Net(nnx.Rngs(0))
    start = wj.prepare_(model, loss_of, batches(seed=1), "adamw", steps=STEPS, progress=False)
    optimizer = nnx.Optimizer(model, start.optimizer, wrt=nnx.Param)
    for _, batch in zip(range(STEPS), batches(seed=1), strict=False):
        nnx_step(model, optimizer, batch)
    print(f"a module, at the rate {float(start.rate):.2g}: {recognised(model):.0%}")


if __name__ == "__main__":
    main()
