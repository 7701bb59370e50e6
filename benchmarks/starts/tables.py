"""Tables: deep nets on the census, and a net with two outputs that plays a game on a board."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from starts.data import census
from starts.task import SGD, Batch, Data, Task, classify

COLUMNS = 91
"""Of Adult: five numbers, and one column for each category."""
SIDE = 5
"""Of the board."""


def deep(sizes: list[int], function: Callable[[], nn.Module]) -> nn.Sequential:
    """Return linear layers with a function between each two."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), function()]
    return nn.Sequential(*layers[:-1])


def census_net(depth: int, function: Callable[[], nn.Module]) -> nn.Sequential:
    """Return a net of so many hidden layers on the census."""
    return deep([COLUMNS, *[64] * depth, 2], function)


class Player(nn.Module):
    """Says where to go and how much that is worth: one body, two heads."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.body = deep([3 * SIDE * SIDE, *[width] * 5], nn.ReLU)
        self.policy, self.value = nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, board: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.body(board))
        return self.policy(x), torch.tanh(self.value(x)).squeeze(-1)


def boards(generator: Generator) -> Batch:
    """Return boards with a player, a goal, and a trap to stay away from; the best way; and its value."""
    count, cells = 96, SIDE * SIDE
    places = torch.rand(count, cells, generator=generator).argsort(1)[:, :3]
    board = F.one_hot(places, cells).float().flatten(1)
    rows, columns = places // SIDE, places % SIDE
    down, right = rows[:, 1] - rows[:, 0], columns[:, 1] - columns[:, 0]
    upright = down.abs() >= right.abs()
    way = torch.where(upright, (down > 0).long(), 2 + (right > 0).long())
    near = ((rows[:, 2] - rows[:, 0]).abs() + (columns[:, 2] - columns[:, 0]).abs() == 1).float()
    return board, way, 0.9 ** (down.abs() + right.abs()) - 0.5 * near


def play(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cross-entropy of the way plus the squared error of the value."""
    policy, value = model(batch[0])
    return F.cross_entropy(policy, batch[1]) + F.mse_loss(value, batch[2])


def adult(name: str, aside: bool, depth: int, function: Callable[[], nn.Module], sgd: bool = False) -> Task:
    """Return a training on the census."""
    return Task(
        name,
        "tables",
        "aside" if aside else "chosen",
        lambda: census_net(depth, function),
        census,
        classify,
        "sgd" if sgd else "adam",
        SGD if sgd else (3e-4, 1e-3, 3e-3),
        300,
    )


TASKS = (
    adult("census, 24 SiLU layers", False, 24, nn.SiLU),
    adult("census, 24 tanh layers", True, 24, nn.Tanh, sgd=True),
    adult("census, 8 GELU layers", True, 8, nn.GELU),
    Task("board game", "values", "aside", Player, lambda: Data.made(boards), play, rates=(1e-3, 3e-3, 1e-2), steps=400),
)
