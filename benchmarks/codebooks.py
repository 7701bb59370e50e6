"""What the size of a codebook is worth: vector-quantised autoencoders of handwritten digits.

    python benchmarks/codebooks.py [--steps 400] [--out docs/results]

Convolutions encode digits of 16 × 16 pixels to 4 × 4 places of 16 features, each of which becomes the nearest row of a
codebook. The codebook is drawn evenly between ±1 / rows, as the published implementations draw it. It is *learnt* (van
den Oord, Vinyals & Kavukcuoglu 2017, arXiv 1711.00937, eq. 3) or *averaged*: a buffer that moves towards the mean of
what is nearest to each row (appendix A.1). Adam at each start's own best rate of five, chosen on two seeds; the mean
squared error of pictures that were set aside is judged on eight others. *By its own size* is the plan for codebooks as
they are: as readouts where they are learnt, and else as small as they are drawn.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

import wellposed as wp
from common import RESULTS, markdown, write
from starts.data import mnist
from wellposed.methods import codebooks as moved
from wellposed.methods import steady

FEATURES, BATCH, SEEN = 16, 64, 4000
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
CHOICE, JUDGED = (0, 1), range(10, 18)
ARMS = ("PyTorch's own", "plan", "by its own size")
COLUMNS = {"task": "codebook", **{arm: arm for arm in ARMS}, "rates": "rates", "verdict": "plan against PyTorch's own"}


class Quantised(nn.Module):
    """An autoencoder through a codebook of so many rows."""

    def __init__(self, rows: int, averaged: bool) -> None:
        super().__init__()
        first = torch.empty(rows, FEATURES).uniform_(-1.0 / rows, 1.0 / rows)
        self.averaged = averaged
        if averaged:
            self.register_buffer("book", first)
            self.register_buffer("sums", first.clone())
            self.register_buffer("counts", torch.zeros(rows))
        else:
            self.book = nn.Parameter(first)
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, FEATURES, 1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(FEATURES, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the picture that the nearest rows make, and the loss of rows and encoder."""
        code = self.encoder(x).permute(0, 2, 3, 1)
        flat = code.reshape(-1, FEATURES)
        distances = flat.square().sum(1, keepdim=True) - 2.0 * flat @ self.book.t() + self.book.square().sum(1)
        index = distances.argmin(1)
        rows = functional.embedding(index, self.book).view_as(code)
        loss = 0.25 * (rows.detach() - code).square().mean()
        if not self.averaged:
            loss = loss + (rows - code.detach()).square().mean()
        elif self.training:
            self._average(flat.detach(), index)
        return self.decoder((code + (rows - code).detach()).permute(0, 3, 1, 2)), loss

    def _average(self, flat: Tensor, index: Tensor) -> None:
        """Move each row towards the mean of what is nearest to it."""
        chosen = functional.one_hot(index, len(self.book)).to(flat.dtype)
        self.counts.mul_(0.99).add_(chosen.sum(0), alpha=0.01)
        self.sums.mul_(0.99).add_(chosen.t() @ flat, alpha=0.01)
        whole = self.counts.sum()
        counts = (self.counts + 1e-5) / (whole + len(self.book) * 1e-5) * whole
        self.book.copy_(self.sums / counts[:, None])


@contextmanager
def as_they_are() -> Iterator[None]:
    """Plan codebooks as if they were no codebooks."""
    with (
        mock.patch.object(steady, "codebooks", return_value=frozenset()),
        mock.patch.object(moved, "codebooks", return_value=frozenset()),
    ):
        yield


def trained(arm: str, rows: int, averaged: bool, rate: float, seed: int, pictures: Tensor, steps: int) -> float:
    """Return the mean squared error of pictures set aside after a training."""
    torch.manual_seed(seed)
    model = Quantised(rows, averaged)
    if arm != ARMS[0]:
        with nullcontext() if arm == ARMS[1] else as_they_are():
            wp.plan(model, pictures[:BATCH], seed=seed).apply_(model)
    seen, aside = pictures[: SEEN * 17 // 20], pictures[SEEN * 17 // 20 :]
    optimizer, generator = torch.optim.Adam(model.parameters(), rate), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = seen[torch.randint(len(seen), (BATCH,), generator=generator)]
        made, loss = model(batch)
        optimizer.zero_grad()
        (functional.mse_loss(made, batch) + loss).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = float(functional.mse_loss(model(aside)[0], aside))
    return error if math.isfinite(error) else math.inf


def main() -> None:
    """Train every codebook from every start, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = functional.pad(mnist()[0][:SEEN], (1, 1, 1, 1))
    pictures = (pictures - pictures.mean()) / pictures.std()
    table: list[dict[str, Any]] = []
    for averaged in (False, True):
        for rows in (64, 256):
            row: dict[str, Any] = {"task": f"{'averaged' if averaged else 'learnt'}, {rows} rows"}
            ends: dict[str, list[float]] = {}
            rates = []
            for arm in ARMS:

                def run(rate: float, seed: int, arm: str = arm, rows: int = rows, averaged: bool = averaged) -> float:
                    return trained(arm, rows, averaged, rate, seed, pictures, options.steps)

                best = min(RATES, key=lambda rate: mean(run(rate, seed) for seed in CHOICE))
                ends[arm] = [run(best, seed) for seed in JUDGED]
                rates.append(f"{best:g}")
                row[arm] = f"{mean(ends[arm]):.3f} ± {stdev(ends[arm]) / math.sqrt(len(JUDGED)):.3f}"
            row["rates"] = ", ".join(rates)
            gaps = [plan - own for plan, own in zip(ends["plan"], ends[ARMS[0]], strict=True)]
            clear = abs(mean(gaps)) > 2.4 * stdev(gaps) / math.sqrt(len(gaps))  # 95 % of Student's t, 7 degrees
            row["verdict"] = ("better" if mean(gaps) < 0.0 else "worse") if clear else "not clear"
            table.append(row)
            print(row, flush=True)
    write("codebooks", markdown(table, COLUMNS), table, options.out)


if __name__ == "__main__":
    main()
