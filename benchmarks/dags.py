"""The nets of the benchmark of learning rates: topologies, and families of nets that share all else."""

from __future__ import annotations

from collections.abc import Sequence

from nets.dags import Edges, Net, parse

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


def families(names: Sequence[str] = ()) -> dict[str, list[Net]]:
    """Return the families of nets; the second of each is its base, the net with one weighted edge."""
    topologies = [(name, parse(name)) for name in (*CHAINS, *MEASURED, *DRAWN, *LONG_CHAINS)]
    blocks = [("mlp1", parse(CHAINS[1])), ("mlp4", parse(CHAINS[4])), *((f"res{n}", residual(n)) for n in (1, 2, 4, 8))]
    kernels = [*((BASE, k) for k in (3, 5, 7)), *((name, k) for name in CNN for k in (3, 5, 7))]
    found = {
        "std128": [Net(name, edges, width=128) for name, edges in topologies],
        "mf64": [Net(name, edges, readout=2) for name, edges in topologies],
        "exact64": [Net(name, edges, scheme="exact") for name, edges in topologies],
        "gelu64": [Net(name, edges, activation="gelu") for name, edges in topologies],
        "res": [Net(name, edges) for name, edges in blocks],
        "res-flow": [Net(name, edges, scheme="flow") for name, edges in blocks],
        "cnn": [Net(f"{name} k{k}", parse(name), width=12, kernel=k) for name, k in kernels],
    }
    return {name: nets for name, nets in found.items() if not names or name in names}


CNN = ("2_02_002_0001", "1_22_120_1121", "2_12_012_0012")
"""Topologies of the convolutional nets, beside the base: a chain, a mixed graph, overlapping skips."""
