"""Dropout."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from wellposed.frontends.jax.primitives import rule
from wellposed.frontends.jax.program import Step


def dropout(step: Step) -> list[Step] | None:
    """``where(bernoulli(p), x / p, 0)``, each element by itself."""
    if step.name != "select_n" or len(step.inputs) != 3:
        return None
    mask, otherwise, kept = step.inputs
    drawn = mask.step
    if drawn is None or drawn.name != "_bernoulli" or otherwise.number != 0 or kept.step is None:
        return None
    chance, scaled = drawn.inputs[1].number, kept.step
    fits = mask.shape == kept.shape and scaled.name == "div" and kept.number is None
    if not fits or chance is None or scaled.inputs[1].number != chance or scaled.inputs[0].shape != kept.shape:
        return None
    return [Step("dropout", {"rate": 1.0 - chance}, [scaled.inputs[0]], step.outputs, step.scopes, step.source)]


@rule("dropout")
def _run_dropout(x: Tensor, *, rate: float) -> Tensor:
    return functional.dropout(x, rate)
