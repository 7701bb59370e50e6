"""Whether rates found on a small model hold for a deeper or a wider one: families of language models, way by way.

    python benchmarks/transfer.py --cost
    python benchmarks/transfer.py [--data ../shared/datasets/shakespeare] [--only 'depth*'] [--journal DIR] [--out DIR]

Byte-level models are trained on the text with AdamW (0.9, 0.95; decay 0.1; warm-up over a tenth of the steps, then
linear to 0), each size at rates a factor of two apart until the valley of the loss lies inside of them, with seeds of
their own for weights and batches. `wellposed.check_transfer` says how far the best rate moves, and what the rate that
is best for the smallest costs the largest. The journal keeps finished runs: a benchmark that was stopped goes on.

Beside the plans stand the model's own initialisation (GPT-2's), and CompleteP as its authors write it: explicit
multipliers and standard deviations of 0.02 at the base, by table 1 of arXiv 2505.01618.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from common import RESULTS, markdown, write
from wellposed.zoo import import_library

DATA = Path(__file__).parents[2] / "shared/datasets/shakespeare"
CONTEXT, BATCH, VOCABULARY, HEAD = 64, 16, 128, 16
BETAS, DECAY, EPS = (0.9, 0.95), 0.1, 1e-8
HELD_OUT = 16
"""Batches on which the loss is taken after the last step."""


class Attention(nn.Module):
    """Causal attention with heads of one size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Mix the positions of (batch, positions, width)."""
        q, k, v = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """A block before whose branches there are norms; ``multiplier`` is the factor of branches, 1 in a plain model."""

    def __init__(self, width: int, multiplier: float = 1.0) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.multiplier = multiplier

    def forward(self, x: Tensor) -> Tensor:
        """Return x with attention and perceptron added."""
        x = x + self.multiplier * self.attention(self.norm_1(x))
        return x + self.multiplier * self.down(functional.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    """A language model of bytes with GPT-2's own initialisation."""

    def __init__(self, depth: int, width: int, multiplier: float = 1.0) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, multiplier) for _ in range(depth)))
        self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                end = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * depth) if end else 1.0))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next byte at every position."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.readout(self.norm(self.blocks(x)))


def llama(depth: int, width: int) -> nn.Module:
    """Return a Llama of transformers, as it is."""
    transformers: Any = import_library("transformers", what="this benchmark")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=8 * width // 3 // 8 * 8,
        num_hidden_layers=depth,
        num_attention_heads=width // HEAD,
        num_key_value_heads=width // HEAD,
        max_position_embeddings=CONTEXT,
        use_cache=False,
    )
    made: nn.Module = transformers.LlamaForCausalLM(config)
    return made


def loss_fn(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next byte."""
    output = model(ids[:, :-1])
    logits = output if isinstance(output, Tensor) else output.logits
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


@dataclass(frozen=True, slots=True)
class Text:
    """The bytes of a text: nine tenths to train on, the last tenth held out."""

    train: Tensor
    test: Tensor

    @classmethod
    def read(cls, folder: Path) -> Text:
        """Read the files of a folder; bytes beyond ASCII become a question mark."""
        raw = b"".join(path.read_bytes() for path in sorted(folder.glob("*.txt")))
        ids = torch.tensor([byte if byte < VOCABULARY else 63 for byte in raw])
        cut = len(ids) * 9 // 10
        return cls(ids[:cut], ids[cut:])

    def batches(self, seed: int) -> Iterator[Tensor]:
        """Yield batches of windows at random places, in an order of the seed's own."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(self.train) - CONTEXT - 1, (BATCH,), generator=generator)
            yield torch.stack([self.train[start : start + CONTEXT + 1] for start in starts.tolist()])

    def held_out(self) -> list[Tensor]:
        """Return batches of windows spread over the text that is held out."""
        starts = torch.linspace(0, len(self.test) - CONTEXT - 2, HELD_OUT * BATCH).long().tolist()
        windows = torch.stack([self.test[start : start + CONTEXT + 1] for start in starts])
        return list(windows.split(BATCH))


# ---- other ways ------------------------------------------------------------------------------------------------------


def explicit(base_depth: int, base_width: int, depth_of: Callable[[int], int], width_of: Callable[[int], int]) -> Any:
    """Return CompleteP as its authors write it: a model with multipliers, by table 1 of arXiv 2505.01618.

    Standard deviations are theirs, 0.02 at the base; the factor stands in the forward pass (see `family_model`).
    """

    def way(model: Any, size: int, lr: float, batch: Any) -> torch.optim.Optimizer:
        m, n = depth_of(size) / base_depth, width_of(size) / base_width
        groups = []
        for block in model.blocks:
            block.multiplier = 1.0 / m
        for name, parameter in model.named_parameters():
            inside, matrix = name.startswith("blocks"), parameter.ndim == 2
            embedding = name.startswith(("tokens", "places"))
            if matrix:
                std = 0.02 / (n if name.startswith("readout") else 1.0 if embedding else math.sqrt(n))
                nn.init.normal_(parameter, std=std)
            groups.append(
                {
                    "params": [parameter],
                    "lr": lr / n if matrix and not embedding else lr,
                    "weight_decay": DECAY * (n if not embedding else 1.0) if matrix else 0.0,
                    "eps": EPS / n / (m if inside else 1.0),
                }
            )
        return torch.optim.AdamW(groups, betas=BETAS)

    return way


# ---- families --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Family:
    """Models of several sizes, and how they are trained.

    Attributes:
        make: from depth and width to a model.
        axis: which of them the sizes are.
        sizes: ascending.
        other: the other one.
        steps: of training.
        seeds: of each rate.
    """

    make: Callable[[int, int], nn.Module]
    axis: str
    sizes: tuple[int, ...]
    other: int
    steps: int = 200
    seeds: int = 2

    def shape(self, size: int) -> tuple[int, int]:
        """Return depth and width of a size."""
        return (size, self.other) if self.axis == "depth" else (self.other, size)

    def ways(self) -> dict[str, Any]:
        """Return what is compared."""
        depth, width = self.shape(self.sizes[0])
        base = {"base_depth": 2 * depth, "base_width": width}
        ways: dict[str, Any] = {
            "own": own,
            "mup": {"method": "mup", "base_width": width},
            "complete_p, α = 1": {"method": "complete_p", "alpha": 1.0, **base},
        }
        if self.axis == "depth":  # over width they are one
            ways["complete_p, α = ½"] = {"method": "complete_p", "alpha": 0.5, **base}
        if self.make is GPT:
            shape = self.shape
            ways["CompleteP, explicit"] = explicit(depth, width, lambda s: shape(s)[0], lambda s: shape(s)[1])
        return ways


def own(model: nn.Module, size: int, lr: float, batch: Any) -> torch.optim.Optimizer:
    """Leave the weights as the model draws them; one rate for all, decay for matrices."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=BETAS)


FAMILIES = {
    "depth of a GPT": Family(GPT, "depth", (2, 8, 32), 32),
    "width of a GPT": Family(GPT, "width", (32, 256), 2),
    "depth of a Llama": Family(llama, "depth", (2, 32), 32),
    "width of a Llama": Family(llama, "width", (32, 256), 2),
}
COLUMNS = {
    "way": "way",
    "small": "best rate at the smallest (log₂)",
    "shift": "octaves to the largest",
    "within": "90 % interval",
    "carried": "loss at the largest, rate carried",
    "best": "its own best",
}


def measure(family: Family, way: str, text: Text, journal: Path | None) -> dict[str, Any]:
    """Return the row of one way."""
    started = time.perf_counter()
    found = wp.check_transfer(
        lambda size: family.make(*family.shape(size)),
        family.sizes,
        loss_fn,
        text.batches,
        {way: family.ways()[way]},
        axis=family.axis,
        optimizer="adamw",
        optimizer_options={"weight_decay": DECAY, "betas": BETAS},
        rates=[2.0**k for k in (range(-10, -5) if way == "own" else range(-9, -4))],
        steps=family.steps,
        seeds=family.seeds,
        held_out=text.held_out(),
        reference=math.log(VOCABULARY),
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
        "carried": mine.carried_loss,
        "best": mine.own_loss,
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
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", default="*", help="pattern of families")
    parser.add_argument("--ways", default="*", help="pattern of ways")
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
    text = Text.read(options.data)
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, family in FAMILIES.items():
        if not fnmatch.fnmatch(name, options.only):
            continue
        rows = []
        for way in family.ways():
            if fnmatch.fnmatch(way, options.ways):
                rows.append(measure(family, way, text, options.journal))
                print(name, rows[-1], flush=True)
        tables[name] = rows
    rows = [{"family": name, **row} for name, measured in tables.items() for row in measured]
    rows = [*_kept(options.out / "transfer.json", rows), *rows]
    order = list(FAMILIES)
    rows.sort(key=lambda row: (order.index(row["family"]), list(FAMILIES[row["family"]].ways()).index(row["way"])))
    told = "\n\n".join(
        f"**{family[0].upper()}{family[1:]}**\n\n{markdown([r for r in rows if r['family'] == family], COLUMNS)}"
        for family in dict.fromkeys(row["family"] for row in rows)
    )
    write("transfer", told, rows, options.out)


def _kept(path: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stored rows that were not measured again."""
    measured = {(row["family"], row["way"]) for row in rows}
    stored = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return [row for row in stored if (row["family"], row["way"]) not in measured]


if __name__ == "__main__":
    main()
