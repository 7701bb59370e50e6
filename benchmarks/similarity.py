"""Similarity of samples: predicted for every node of a net, against real passes.

    python benchmarks/similarity.py [--family nets|languages|graphs] [--nets resnet50_bn gpt ...] [--draws 16]
        [--out docs/results]

Nets, inputs and plans are those of `accuracy.py`; of the families ``languages`` and ``graphs`` they are those of
`language_models.py` (`LANGUAGES`) and the graph nets of `outsiders.py` (torch_geometric). The figure of a node is
|predicted - measured| of `Signal.similarity`, E[x x'] / E[x²] of two samples of a batch at the same place, of two nodes
of a graph. The measured one is a mean over draws of weights and inputs, whose standard error is told. Views are left
out, and nodes that tell no samples apart.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import wellposed as wp
from common import RESULTS, markdown, write
from nets import languages, outsiders
from nets.catalogue import NETS, descriptor, input_kinds, net_batch
from wellposed.errors import WellposedError
from wellposed.operators.schema import plain_name

WITHIN = 0.05
"""Difference up to which a node counts as right."""
GOAL = 0.9
COLUMNS = {
    "net": "net",
    "input": "input",
    "nodes": "nodes",
    "within": f"within {WITHIN}",
    "beyond_chance": "with 2 SE allowed for",
    "p50": "median",
    "p95": "p95",
    "error": "median SE",
    "last": "predicted at the last",
    "last_measured": "measured",
    "worst": "worst node",
}


LANGUAGES = (
    "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3",
    "phi", "phi3", "falcon", "stablelm", "cohere", "olmo", "olmo2", "granite", "starcoder2", "mpt", "bert", "roberta",
    "electra", "mixtral", "qwen2_moe", "olmoe", "mamba", "mamba2", "rwkv", "xglm",
)  # fmt: skip
"""Causal language models: attention in its common forms, experts, state spaces."""


@dataclass(frozen=True, slots=True)
class Case:
    """A net and its inputs.

    Attributes:
        build: makes the net.
        batch: inputs of a draw: a tensor, a tuple, or a dict by name.
        told: what the prediction is told of them; None for its defaults.
    """

    name: str
    input: str
    group: str
    build: Callable[[], nn.Module]
    batch: Callable[[int], Any]
    told: Any = None


def accuracys(names: list[str] | None) -> Iterator[Case]:
    """Yield the nets of `accuracy.py` with each of their inputs."""
    for name in names or NETS:
        net = NETS[name]
        for kind in input_kinds(net):
            yield Case(name, kind, net.group, net.build, partial(net_batch, net, kind), descriptor(net, kind))


def language_models(names: list[str] | None) -> Iterator[Case]:
    """Yield language models on independent tokens."""
    for name in names or LANGUAGES:
        yield Case(name, "tokens", languages.kind(name), partial(languages.build, name), languages.tokens)


def graph_nets(names: list[str] | None) -> Iterator[Case]:
    """Yield graph nets of torch_geometric, of features of nodes and links."""
    for name, make, inputs in outsiders.torch_geometric():
        if name in (names or [name]):
            yield Case(name, "nodes", "graph", make, partial(_drawn, inputs))


def _drawn(inputs: Any, draw: int) -> Any:
    """Return one draw of an entry's inputs."""
    generator = torch.Generator().manual_seed(draw)
    if isinstance(inputs, Mapping):
        return {name: one(generator) for name, one in inputs.items()}
    return tuple(one(generator) for one in inputs)


FAMILIES = {"nets": accuracys, "languages": language_models, "graphs": graph_nets}


def traced(case: Case, seed: int) -> wp.Graph:
    """Return a net's graph."""
    torch.manual_seed(seed)
    batch = case.batch(seed)
    if isinstance(batch, Mapping):
        return wp.trace(case.build(), **batch)
    return wp.trace(case.build(), *(batch if isinstance(batch, tuple) else (batch,)))


def evaluate(case: Case, draws: int, seed: int) -> dict[str, Any]:
    """Return the row of one net and input."""
    graph = traced(case, seed)
    plan = wp.plan(graph, inputs=case.told, seed=seed, method="autoinit", rehearse=False)
    predicted = wp.propagate(graph, inputs=case.told, weights=plan)
    seen: dict[str, list[float]] = {}
    for draw in range(draws):
        batch = partial(case.batch, seed + 1 + draw)
        for signal in wp.measure(graph, plan=plan, draws=1, inputs=lambda _, batch=batch: batch(), seed=seed + draw):
            seen.setdefault(signal.name, []).append(signal.similarity)
    views = {graph.values[v].name for node in graph if node.op.is_view for v in node.outputs}
    names = [
        s.name for s in predicted if s.name not in views and np.isfinite([s.similarity, *seen.get(s.name, [nan])]).all()
    ]
    row: dict[str, Any] = {
        "net": case.name, "input": case.input, "group": case.group, "nodes": len(names), "draws": draws,
    }  # fmt: skip
    if not names:
        return row
    told = np.array([predicted[name].similarity for name in names])
    passes = np.array([seen[name] for name in names])
    means, errors = passes.mean(axis=1), passes.std(axis=1, ddof=1) / np.sqrt(draws)
    off = np.abs(told - means)
    right, worst = off <= WITHIN + 2.0 * errors, int((off - 2.0 * errors).argmax())
    wrong = {name for name, fine in zip(names, right, strict=True) if not fine}
    return row | {
        "within": round(float((off <= WITHIN).mean()), 3),
        "beyond_chance": round(float(right.mean()), 3),
        "right": [int((off <= WITHIN).sum()), int(right.sum())],
        "p50": round(float(np.median(off)), 4),
        "p95": round(float(np.quantile(off, 0.95)), 4),
        "error": round(float(np.median(errors)), 4),
        "last": round(float(told[-1]), 3),
        "last_measured": round(float(means[-1]), 3),
        "worst": f"{names[worst]}: {told[worst]:.2f} for {means[worst]:.2f}",
        "begins": dict(begins(graph, wrong).most_common()),
    }


def begins(graph: wp.Graph, wrong: set[str]) -> Counter[str]:
    """Return at which operators errors begin, and how often: those whose inputs are right where they are not."""
    off = {value.id for value in graph.values if value.name in wrong}
    for node in graph:
        if node.op.is_view and off.intersection(node.inputs):
            off.update(node.outputs)
    return Counter(
        plain_name(node.op)
        for node in graph
        if not node.op.is_view and off.intersection(node.outputs) and not off.intersection(node.inputs)
    )


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILIES, default="nets")
    parser.add_argument("--nets", nargs="+", metavar="NET", help="nets to run, beside stored rows of others; all")
    parser.add_argument("--draws", type=int, default=16, help="weight and input draws (default 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    name = "similarity" if options.family == "nets" else f"similarity_{options.family}"
    path = options.out / f"{name}.json"
    kept = json.loads(path.read_text())["rows"] if options.nets and path.exists() else []
    rows = [row for row in kept if row["net"] not in options.nets]
    for case in FAMILIES[options.family](options.nets):
        try:
            rows.append(evaluate(case, options.draws, options.seed))
        except (ImportError, WellposedError) as error:  # the others are measured
            rows.append({"net": case.name, "input": case.input, "nodes": 0, "refused": f"{error!r}"[:200]})
        print({key: rows[-1].get(key) for key in (*COLUMNS, "begins", "refused")}, flush=True)
    place = {one.name: index for index, one in enumerate(FAMILIES[options.family](None))}
    rows.sort(key=lambda row: place[row["net"]])
    told = [row for row in rows if row["nodes"]]
    nodes = sum(row["nodes"] for row in told)
    right, allowed = (sum(row["right"][at] for row in told) for at in (0, 1))
    reached = sum(row["beyond_chance"] >= GOAL for row in told)
    first = sum((Counter(row.get("begins", {})) for row in told), Counter[str]())
    whole = all("begins" in row for row in told)  # rows that were stored before do not say it
    where = ", ".join(f"{op} ({count})" for op, count in first.most_common(6) if whole)
    text = (
        f"Of {nodes} nodes {right / max(nodes, 1):.0%} are within {WITHIN}, and {allowed / max(nodes, 1):.0%} with two "
        f"standard errors allowed for. So are {GOAL:.0%} of the nodes of {reached} of {len(told)} nets "
        f"and inputs. Mean over {options.draws} draws.{f' Errors begin at: {where}.' if where else ''}\n\n"
    )
    write(name, text + markdown(told, COLUMNS), rows, options.out)


if __name__ == "__main__":
    main()
