"""Whether rates found on a small model hold for a deeper or a wider one: families of models, way by way.

    python benchmarks/transfer.py --cost
    python benchmarks/transfer.py [--only 'depth*'] [--ways '*'] [--journal DIR] [--text DIR] [--images DIR] [--out DIR]

Language models of bytes are trained on a text, image models on CIFAR-10, with AdamW (0.9, 0.95; decay 0.1) unless a
family says otherwise; rates rise over a tenth of the steps, then fall to 0. Each size is trained at rates a factor of
two apart until the valley of the loss lies inside of them, with seeds of their own for weights and batches.
`wellposed.check_transfer` says how far the best rate moves, and what the rate that is best for the smallest costs the
largest. The journal keeps finished runs: a benchmark that was stopped goes on.

Beside the plans stand the model's own initialisation, and for the pre-norm GPT the ways of transfer_peers.py.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from common import RESULTS, markdown, write
from nets.growing import CLASSES, CONTEXT, GPT, SIDE, gpt_2, llama, mixtral, olmo_2, resnet, vit
from training_data import DATA, HELD_OUT, TEXTS, Text, images
from transfer_peers import BETAS, DECAY, Peer, peers

NORM = 1.0
"""Where families that clip do so."""


# ---- tasks -----------------------------------------------------------------------------------------------------------


class Task(Protocol):
    """What models are trained on; ``chance`` is the loss of one that knows nothing."""

    chance: float

    def batches(self, seed: int) -> Iterator[Any]:
        """Yield batches in an order of the seed's own."""

    def held_out(self) -> list[Any]:
        """Return batches that are not trained on."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch."""


@dataclass(frozen=True, slots=True)
class Images:
    """CIFAR-10, channels standardised: the first images to train on, the last ones held out."""

    pixels: Tensor
    labels: Tensor
    size: int = 64
    chance: float = math.log(CLASSES)

    @classmethod
    def read(cls, folder: Path) -> Images:
        """Read ``train.parquet``; that takes pyarrow and Pillow."""
        return cls(*images(folder, 15_000, SIDE))

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches in random order."""
        generator = torch.Generator().manual_seed(seed)
        count = len(self.pixels) - HELD_OUT * self.size
        while True:
            for chosen in torch.randperm(count, generator=generator).split(self.size)[:-1]:
                yield self.pixels[chosen], self.labels[chosen]

    def held_out(self) -> list[tuple[Tensor, Tensor]]:
        """Return the last images."""
        count = HELD_OUT * self.size
        return list(zip(self.pixels[-count:].split(self.size), self.labels[-count:].split(self.size), strict=True))

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy of the classes."""
        output = model(batch[0])
        logits = output if isinstance(output, Tensor) else output.logits
        return functional.cross_entropy(logits, batch[1])


# ---- ways ------------------------------------------------------------------------------------------------------------

Kind = Literal["adamw", "sgd", "muon"]


class Together:
    """Several optimizers as one; with ``norm`` gradients are clipped by their common norm before a step."""

    def __init__(self, *parts: torch.optim.Optimizer, norm: float | None = None) -> None:
        self.parts, self.norm = parts, norm
        self.param_groups = [group for part in parts for group in part.param_groups]

    def step(self) -> None:
        """Take a step of each."""
        if self.norm is not None:
            wp.clip_grad_norm_(self.param_groups, self.norm)
        for part in self.parts:
            part.step()


def optimizer_of(kind: Kind, groups: list[dict[str, Any]], lr: float, norm: float | None) -> Any:
    """Return an optimizer of groups of parameters; those of Muon are told by their ``family``."""
    if kind == "sgd":
        parts: list[torch.optim.Optimizer] = [torch.optim.SGD(groups, lr=lr, momentum=0.9)]
    elif kind == "adamw":
        parts = [torch.optim.AdamW(groups, lr=lr, betas=BETAS)]
    else:
        matrices = [group for group in groups if group["family"] == "muon"]
        others = [group for group in groups if group["family"] != "muon"]
        parts = [torch.optim.Muon(matrices, lr=lr), torch.optim.AdamW(others, lr=lr, betas=BETAS)]
    return parts[0] if len(parts) == 1 and norm is None else Together(*parts, norm=norm)


@dataclass(frozen=True, slots=True)
class Own:
    """The weights as the model draws them; one rate for all, decay for matrices; Muon for those in blocks."""

    kind: Kind
    norm: float | None

    def __call__(self, model: nn.Module, size: int, lr: float, batch: Any) -> Any:
        """Return the optimizer."""
        groups: dict[tuple[str, bool], dict[str, Any]] = {}
        for name, parameter in model.named_parameters():
            decayed = parameter.ndim >= 2
            family = "muon" if self.kind == "muon" and parameter.ndim == 2 and name.startswith("blocks") else "adam"
            settings = {"params": [], "family": family, "weight_decay": decay_of(self.kind) if decayed else 0.0}
            groups.setdefault((family, decayed), settings)["params"].append(parameter)
        return optimizer_of(self.kind, list(groups.values()), lr, self.norm)


def decay_of(kind: Kind) -> float:
    """Return the weight decay: inside the gradient for SGD, where 0.1 would be far too much."""
    return 1e-4 if kind == "sgd" else DECAY


@dataclass(frozen=True, slots=True)
class Planned:
    """A method of planning: weights drawn by its plan, an optimizer of its groups. Each size is planned once."""

    kind: Kind
    norm: float | None
    options: Mapping[str, Any]
    plans: dict[int, wp.Plan] = field(default_factory=dict)

    def __call__(self, model: nn.Module, size: int, lr: float, batch: Any) -> Any:
        """Draw the weights, and return the optimizer."""
        if size not in self.plans:
            example = batch[:, :-1] if isinstance(batch, Tensor) else batch[0]
            self.plans[size] = wp.plan(model, example, **self.options)
        plan = self.plans[size].model_copy(update={"seed": int(torch.randint(1 << 30, ()))})
        plan.apply_(model)
        others = ("adamw", lr) if self.kind == "muon" else None
        groups = plan.param_groups(model, lr, self.kind, weight_decay=decay_of(self.kind), others=others)
        return optimizer_of(self.kind, groups, lr, self.norm)


# ---- families --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Family:
    """Models of several sizes, and how they are trained.

    Attributes:
        make: from depth and width to a model.
        axis: which of them the sizes are.
        sizes: ascending.
        other: the other one.
        branches: residual branches for each unit of depth.
        kind: the optimizer.
        steps: of training.
        seeds: of each rate.
        norm: where gradients are clipped; None for not.
        octaves: log2 of the rates to begin with.
        images: whether the task is images.
    """

    make: Callable[[int, int], nn.Module]
    axis: str
    sizes: tuple[int, ...]
    other: int
    branches: int = 2
    kind: Kind = "adamw"
    steps: int = 200
    seeds: int = 3
    norm: float | None = None
    octaves: range = range(-8, -3)
    images: bool = False

    def shape(self, size: int) -> tuple[int, int]:
        """Return depth and width of a size."""
        return (size, self.other) if self.axis == "depth" else (self.other, size)

    def ways(self) -> dict[str, Own | Planned | Peer]:
        """Return what is compared."""
        depth, width = self.shape(self.sizes[0])
        base = {"base_depth": self.branches * depth, "base_width": width}
        options: dict[str, dict[str, Any]] = {
            "mup": {"method": "mup", "base_width": width},
            "complete_p, α = 1": {"method": "complete_p", "alpha": 1.0, **base},
        }
        if self.axis == "depth":  # over width they are one
            options["complete_p, α = ½"] = {"method": "complete_p", "alpha": 0.5, **base}
        ways: dict[str, Own | Planned | Peer] = {"own": Own(self.kind, self.norm)}
        ways |= {way: Planned(self.kind, self.norm, each) for way, each in options.items()}
        plain = self.make is GPT and self.kind == "adamw" and self.norm is None
        return ways | (peers((depth, width)) if plain else {})


FAMILIES = {
    "depth of a GPT": Family(GPT, "depth", (2, 8, 32), 32),
    "width of a GPT": Family(GPT, "width", (32, 256), 2),
    "depth of a Llama": Family(llama, "depth", (2, 16), 32),
    "width of a Llama": Family(llama, "width", (32, 128), 2),
    "depth of a GPT, Muon": Family(GPT, "depth", (2, 16), 32, kind="muon"),
    "depth of a GPT, SGD": Family(GPT, "depth", (2, 16), 32, kind="sgd", octaves=range(-5, 0)),
    "depth of a GPT, clipped": Family(GPT, "depth", (2, 16), 32, norm=NORM),
    "depth of a GPT, 1,000 steps": Family(GPT, "depth", (2, 8), 32, steps=1_000),
    "depth of an OLMo-2": Family(olmo_2, "depth", (2, 16), 32),
    "depth of a GPT-2": Family(gpt_2, "depth", (2, 16), 32),
    "width of a GPT-2": Family(gpt_2, "width", (32, 128), 2),
    "depth of a Mixtral": Family(mixtral, "depth", (2, 16), 32),
    "depth of a ViT, images": Family(vit, "depth", (2, 16), 32, images=True),
    "width of a ViT, images": Family(vit, "width", (32, 128), 2, images=True),
    "depth of a ResNet, images": Family(resnet, "depth", (1, 6), 16, branches=3, images=True),
    "depth of a ResNet, images, SGD": Family(
        resnet, "depth", (1, 6), 16, branches=3, images=True, kind="sgd", octaves=range(-7, -2)
    ),
}
WAYS = [
    "own",
    "mup",
    "complete_p, α = 1",
    "complete_p, α = ½",
    "CompleteP, explicit",
    "microsoft/mup",
    "u-μP",
]
"""In the order of the tables."""
COLUMNS = {
    "way": "way",
    "small": "best rate at the smallest (log₂)",
    "shift": "octaves to the largest",
    "within": "90 % interval",
    "smallest": "loss at the smallest",
    "carried": "at the largest, rate carried",
    "best": "its own best",
    "draws": "draws",
}


def measure(family: Family, way: str, task: Task, journal: Path | None) -> dict[str, Any]:
    """Return the row of one way."""
    started = time.perf_counter()
    chosen = family.ways()[way]
    make, octaves, trained = family.make, family.octaves, chosen
    if isinstance(chosen, Peer):
        make, octaves = chosen.make, chosen.octaves

        def trained(model: nn.Module, size: int, lr: float, batch: Any) -> torch.optim.Optimizer:
            return chosen.way(model, family.shape(size), lr)

    found = wp.check_transfer(
        lambda size: make(*family.shape(size)),
        family.sizes,
        task.loss,
        task.batches,
        {way: trained},
        axis=family.axis,
        rates=[2.0**k for k in octaves],
        steps=family.steps,
        seeds=family.seeds,
        held_out=task.held_out(),
        reference=task.chance,
        journal=journal,
        progress=False,
        refine=0,
    )
    mine = found.ways[way]
    return {
        "way": way,
        "small": math.log2(mine.curves[0].rate),
        "shift": mine.shift,
        "interval": list(mine.interval),
        "within": " to ".join("–" if edge is None else f"{edge:+.1f}" for edge in mine.interval),
        "smallest": mine.curves[0].own_loss,
        "carried": mine.carried_loss,
        "best": mine.own_loss,
        "draws": found.seeds,
        "verdict": mine.verdict,
        "seconds": time.perf_counter() - started,
        "said": str(found),
        "curves": [
            {"size": curve.size, "points": [[point.rate, list(point.losses)] for point in curve.points]}
            for curve in mine.curves
        ],
    }


def cost(repeats: int = 5) -> list[dict[str, Any]]:
    """Return what planning costs beside method ``mup``, in processor time, the least of several."""
    rows = []
    ids = torch.zeros(2, CONTEXT, dtype=torch.long)
    for make in (GPT, llama):
        with torch.device("meta"):
            model = make(12, 256)
        times: dict[str, list[float]] = {"mup": [], "complete_p": []}
        for _ in range(repeats):
            for method, options in (("mup", {}), ("complete_p", {"base_depth": 4, "base_width": 64})):
                started = time.process_time()
                wp.plan(model, ids, method=method, **options)
                times[method].append(time.process_time() - started)
        mup, ours = (min(each) for each in times.values())
        rows.append({"model": make.__name__, "mup": mup, "complete_p": ours, "ratio": ours / mup})
    return rows


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=TEXTS, help="folder of texts")
    parser.add_argument("--images", type=Path, default=DATA, help="folder with train.parquet")
    parser.add_argument("--only", default="*", help="pattern of families")
    parser.add_argument("--ways", default="*", help="pattern of ways")
    parser.add_argument("--seeds", type=int, help="draws of each rate, in place of each family's own number")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--cost", action="store_true", help="measure what planning costs, and nothing else")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.cost:
        rows = cost()
        columns = {"model": "model", "mup": "mup (s)", "complete_p": "complete_p (s)", "ratio": "ratio"}
        write("transfer_cost", markdown(rows, columns), rows, options.out)
        return
    tasks: dict[bool, Task] = {}
    for name, configured in FAMILIES.items():
        if not fnmatch.fnmatch(name, options.only):
            continue
        family = configured if options.seeds is None else replace(configured, seeds=options.seeds)
        if family.images not in tasks:
            tasks[family.images] = Images.read(options.images) if family.images else Text.read(options.text)
        for way in family.ways():
            if fnmatch.fnmatch(way, options.ways):
                journal = None if options.journal is None else options.journal / re.sub(r"\W+", "-", name)
                row = {"family": name, **measure(family, way, tasks[family.images], journal)}
                print(row["said"], flush=True)
                _write(row, options.out)


def _write(row: dict[str, Any], folder: Path) -> None:
    """Write a row, beside those that were stored and not measured again."""
    path = folder / "transfer.json"
    stored = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = [row, *(other for other in stored if (other["family"], other["way"]) != (row["family"], row["way"]))]
    families = list(FAMILIES)
    rows.sort(key=lambda row: (families.index(row["family"]), WAYS.index(row["way"])))
    told = "\n\n".join(
        f"**{family[0].upper()}{family[1:]}**\n\n{markdown([r for r in rows if r['family'] == family], COLUMNS)}"
        for family in dict.fromkeys(row["family"] for row in rows)
    )
    write("transfer", told, rows, folder)


if __name__ == "__main__":
    main()
