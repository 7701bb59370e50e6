"""The nets of the benchmark of learning rates: families of nets that share all else, and how each is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nets import rated
from nets.dags import Edges, Net, parse
from nets.growing import CONTEXT

# The chains of 1 to 5 activations; three graphs with many skips or many weights; and fourteen drawn at random, one from
# each of as many strata of the sum of cubes of path lengths, among distinct connected graphs of five vertices.
CHAINS = ("1_01_001_0001", "2_01_001_0001", "2_02_001_0001", "2_02_002_0001", "2_02_002_0002")
MEASURED = ("2_22_222_2222", "1_22_120_1121", "1_11_121_0101")
DRAWN = (
    *(
        "1_21_001_0101",
        "1_01_011_2012",
        "1_12_011_2201",
        "1_20_002_0111",
        "1_01_201_0022",
        "1_11_121_1112",
        "1_22_112_1001",
    ),
    *(
        "2_20_022_0111",
        "1_11_002_1222",
        "2_11_012_1121",
        "2_22_011_0211",
        "2_21_121_1221",
        "2_02_202_1002",
        "2_22_221_1122",
    ),
)
LONG_CHAINS = tuple("_".join("0" * i + "2" for i in range(n)) for n in (6, 9))
BASE = CHAINS[1]


def residual(blocks: int) -> Edges:
    """Return a chain of blocks x + f(W2 f(W1 x)), where f is the activation."""
    edges: list[tuple[tuple[int, bool], ...]] = []
    for block in range(blocks):
        edges += [((2 * block, False),), ((2 * block, True), (2 * block + 1, False))]
    return tuple(edges)


def cubes(edges: Edges) -> int:
    """Return the sum over paths of the cubed number of activations, the stem's included, by enumeration."""

    def lengths(v: int) -> list[int]:
        if v == 0:
            return [1]
        return [length + (not skip) for a, skip in edges[v - 1] for length in lengths(a)]

    return sum(length**3 for length in lengths(len(edges)))


Kind = Literal["flat", "images", "text"]
FAST = [2.0**k for k in range(-7, 2)]
"""A coarser grid for nets that are dear."""
SMALL = [2.0**k for k in range(-13, -4)]
"""The same for AdamW."""


@dataclass(frozen=True, slots=True)
class Case:
    """A net, and how it is trained.

    Attributes:
        name: the net's.
        build: makes it with fresh weights.
        kind: what it takes: images as vectors, as images, or bytes.
        optimizer: its name.
        batch: samples of a batch.
        steps: of training.
        options: further ones of `wellposed.rates.find_max_lr`.
    """

    name: str
    build: Callable[[], nn.Module]
    kind: Kind = "flat"
    optimizer: str = "sgd"
    batch: int = 128
    steps: int = 200
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def example(self) -> Tensor:
        """An input of four samples."""
        if self.kind == "text":
            return torch.zeros(4, CONTEXT, dtype=torch.long)
        return torch.zeros((4, 3, 16, 16) if self.kind == "images" else (4, 3 * 16**2))


def families(names: Sequence[str] = ()) -> dict[str, list[Case]]:
    """Return the families of nets; the first of each is its base."""
    topologies = [(name, parse(name)) for name in (BASE, *CHAINS, *MEASURED, *DRAWN, *LONG_CHAINS)]
    graphs = dict(topologies)  # the base comes first, and once
    blocks = {"mlp1": parse(CHAINS[1]), "mlp4": parse(CHAINS[4]), **{f"res{n}": residual(n) for n in (1, 2, 4, 8)}}
    kernels = [*((BASE, k) for k in (3, 5, 7)), *((name, k) for name in CNN for k in (3, 5, 7))]
    nets = {
        "std128": [Net(name, edges, width=128) for name, edges in graphs.items()],
        "mf64": [Net(name, edges, readout=2) for name, edges in graphs.items()],
        "exact64": [Net(name, edges, scheme="exact") for name, edges in graphs.items()],
        "gelu64": [Net(name, edges, activation="gelu") for name, edges in graphs.items()],
        "res": [Net(name, edges) for name, edges in blocks.items()],
        "res-flow": [Net(name, edges, scheme="flow") for name, edges in blocks.items()],
    }
    nets["exact512"] = [replace(net, width=512) for net in nets["exact64"][::3]]
    found = {name: [Case(net.name, net.build) for net in each] for name, each in nets.items()}
    convolutional = [Net(f"{name} k{k}", parse(name), width=12, kernel=k) for name, k in kernels]
    coarse = {"grid": FAST}
    small = {"grid": SMALL}
    found["exact64-adam"] = [Case(net.name, net.build, optimizer="adam", options=small) for net in nets["exact64"]]
    found["cnn"] = [Case(net.name, net.build, "images", batch=64, steps=100, options=coarse) for net in convolutional]

    def made(builds: rated.Builds, *kind: Any, **how: Any) -> list[Case]:
        return [Case(name, build, *kind, **how) for name, build in builds.items()]

    def half(builds: rated.Builds) -> rated.Builds:
        return dict(list(builds.items())[::2])

    found |= {
        "mixed64": made(rated.mixed_graphs()),
        "mixed512": made(half(rated.mixed_graphs(width=512)), options=coarse),
        "residual64": made(rated.residual_nets(), options=coarse),
        "residual256": made(half(rated.residual_nets(width=256)), options=coarse),
        "residual512": made(half(rated.residual_nets(width=512)), options=coarse),
        "residual64-adam": made(rated.residual_nets(), optimizer="adam", options=small),
        "batchnorm64": made(rated.batch_norms(), options=coarse),
        "convolutions": made(rated.conv_nets(), "images", batch=64, steps=300, options=coarse),
        "convolutions-flat": made(half(rated.conv_nets(pooled=False)), "images", batch=64, steps=300, options=coarse),
        "mixer": made(rated.mixers(), "images", batch=64, steps=120, options=coarse),
        "vit": made(rated.transformers(text=False), "images", batch=64, steps=120, options=coarse),
        "vit128": made(half(rated.transformers(text=False, width=128)), "images", batch=64, steps=120, options=coarse),
        "vit-adamw": made(rated.transformers(text=False), "images", "adamw", batch=64, steps=120, options=small),
        "gpt": made(rated.transformers(text=True), "text", batch=16, steps=120, options=coarse),
        "gpt128": made(half(rated.transformers(text=True, width=128)), "text", batch=16, steps=120, options=coarse),
        "gpt-adamw": made(rated.transformers(text=True), "text", "adamw", batch=16, steps=120, options=small),
    }
    return {name: cases for name, cases in found.items() if not names or name in names}


CNN = ("2_02_002_0001", "1_22_120_1121", "2_12_012_0012")
"""Topologies of the convolutional nets, beside the base: a chain, a mixed graph, overlapping skips."""
