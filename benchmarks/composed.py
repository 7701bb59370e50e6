"""Count the plans that `check` confirms, of nets that are composed at random of layers of many kinds.

    python benchmarks/composed.py [--count 200] [--seed 0] [--method steady] [--only 17 212]

Two to four layers of `nets.composed` stand between an input (tokens, or noise) and a readout: one after the other, or
as residual branches with their norm before or behind. For each net that is not confirmed the first node that is off is
told, and for each kind of layer how many of the nets that hold it are not.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import wellposed as wp
from nets.composed import KINDS, TOKENS
from nets.composed_more import channels_first

SAMPLES, ENTERING, VOCABULARY, CLASSES = 8, 24, 100, 10
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "no norm": lambda width: nn.Identity(),
    "layer norm": nn.LayerNorm,
    "RMS norm": nn.RMSNorm,
    "batch norm": lambda width: channels_first(nn.BatchNorm1d(width)),
}
STYLES = ("chain", "norm first", "norm last")


class Net(nn.Module):
    """Layers between an input and a readout of the mean over tokens."""

    def __init__(self, kinds: Sequence[str], norm: str, style: str, width: int, of_tokens: bool) -> None:
        super().__init__()
        self.words = (*kinds, norm, style, f"width {width}", "tokens" if of_tokens else "noise")
        self.style = style
        self.enter: nn.Module = nn.Embedding(VOCABULARY, width) if of_tokens else nn.Linear(ENTERING, width)
        self.layers = nn.ModuleList([KINDS[name](width) for name in kinds])
        self.norms = nn.ModuleList([NORMS[norm](width) for _ in kinds])
        self.readout = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (samples, classes)."""
        x = self.enter(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            if self.style == "norm first":
                x = x + layer(norm(x))
            else:
                x = norm(x + layer(x) if self.style == "norm last" else layer(x))
        return self.readout(x.mean(1))


def net(seed: int) -> tuple[Net, Tensor]:
    """Return a net, drawn by a seed, and an example for it."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kinds = [draw.choice(sorted(KINDS)) for _ in range(draw.randint(2, 4))]
    of_tokens = draw.random() < 1 / 3
    made = Net(kinds, draw.choice(list(NORMS)), draw.choice(STYLES), draw.choice([32, 64]), of_tokens)
    shape = (SAMPLES, TOKENS)
    return made, torch.randint(VOCABULARY, shape) if of_tokens else torch.randn(*shape, ENTERING)


def wrong(seed: int, method: str) -> str:
    """Return what is wrong with the plan of a net: an error, or the first node that is off; empty where nothing is."""
    model, x = net(seed)
    try:
        verdict = wp.check(model, x, plan=wp.plan(model, x, method=method, rehearse=False))
    except Exception as error:  # whatever it is, a user would have met it
        return f"{type(error).__name__}: {error}"[:200]
    lines = [line for line in str(verdict).splitlines() if line.startswith("first off")]
    return "" if verdict.ok else (lines or ["off"])[0]


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="steady")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seeds = told.only or range(told.seed, told.seed + told.count)
    held, off = Counter[str](), Counter[str]()
    missed = 0
    for seed in seeds:
        words = net(seed)[0].words
        held.update(set(words))
        if why := wrong(seed, told.method):
            missed += 1
            off.update(set(words))
            print(f"{seed}: {', '.join(words)}: {why}", flush=True)
    print(f"{len(seeds) - missed} of {len(seeds)} confirmed; nets that are not, by what they hold:")
    print(", ".join(f"{word} {off[word]} of {held[word]}" for word, _ in off.most_common(12)))


if __name__ == "__main__":
    main()
