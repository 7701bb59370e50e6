"""All-CNN-C with an activation function of PANGAEA, drawn and trained."""

from __future__ import annotations

from functools import partial

from torch import nn

import wellposed as wp
from experiments.data import Images
from experiments.initialise import initialised
from experiments.models import all_cnn_c
from experiments.pangaea import Activation, Expression, X
from experiments.recipe import recipe
from experiments.registry import Row, Settings
from experiments.training import train

RELU = Expression("relu", (X,))
PLUS = "autoinit++"
"""AutoInit with every activation less its Gaussian mean."""


def trained(
    function: Expression, settings: Settings, method: str, images: Images, seed: int, *, checkpoint: str | None = None
) -> tuple[nn.Module | None, Row]:
    """Return the trained net and its figures; no net, and chance, where no plan can be made, as of signals of zero.

    Args:
        function: of every layer.
        settings: ``width``, ``dropout`` and ``train``.
        method: an initialisation, or `PLUS`.
        images: training and test.
        seed: of weights and batches.
        checkpoint: see `experiments.training.train`.
    """
    build = partial(_net, function, settings.width, centered=method == PLUS)
    try:
        model = build(tuple(settings.dropout))
        # the paper's AutoInit knows nothing of dropout
        plain = initialised(
            partial(build, (0.0, 0.0, 0.0)), "autoinit" if method == PLUS else method, images.x[:2], seed
        )
    except wp.errors.WellposedError as error:
        note = f"{type(error).__name__}: {str(error).partition(';')[0]}"
        return None, {"loss": float("inf"), "accuracy": 1 / images.classes, "diverged": True, "note": note[:200]}
    model.load_state_dict(plain.state_dict())
    found = train(model, images, recipe(settings.train), seed, checkpoint=checkpoint)
    return model, found.as_row()


def _net(function: Expression, width: int, dropout: tuple[float, float, float], *, centered: bool) -> nn.Sequential:
    """Return All-CNN-C with the function, whose factors are its own in each layer and channel."""
    model = all_cnn_c(width=width, dropout=dropout, activation=nn.Identity)
    for index, layer in enumerate(model):
        if isinstance(layer, nn.Conv2d):
            model[index + 1] = Activation(function, layer.out_channels, centered)
    return model
