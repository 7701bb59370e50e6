"""Does an initialisation help training? Plans and refinements on CIFAR-10, each at its best learning rate.

    python benchmarks/benefit.py [--nets resnet ...] [--methods nio ...] [--seeds 3] [--minutes 30] [--out docs/results]

Images are pooled to 16×16; nets are small (`NETS`). Every run takes two epochs of 2,560 images in batches of 64, by SGD
with momentum 0.9 (the transformer: Adam), under a cosine schedule without weight decay; accuracy is that on 2,000 other
images. All rates are run with the first seed; where the smallest training loss lies at an end of the grid, the grid
goes on. The best rate and its two neighbours are then run with all seeds, and the best of these by the mean training
loss is reported, so that the images of the test choose nothing.

Finished runs are noted in a journal for each net, so that a benchmark that was stopped goes on where it was;
``--minutes`` stops it in time, and the table then holds what is complete and names what is not. Reading the data takes
pyarrow and Pillow.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import torch
from torch import Tensor, nn

import wellposed as wp
from common import RESULTS, markdown, write
from nets.images import preact_resnet
from nets.libraries import import_extras, without_norm
from rates import mean_loss
from training_data import DATA, SIDE, images
from wellposed.errors import WellposedError
from wellposed.gradients import gradcosine, gradient_norm, gradinit, lsuv, metainit, nio, warmup
from wellposed.plans import Plan

JOURNALS = Path("build") / "benefit"
TRAIN, TEST, BATCH, EPOCHS, SCORED = 2_560, 2_000, 64, 2, 32
STEPS = EPOCHS * TRAIN // BATCH
FACTOR, EXTENSIONS = math.sqrt(10), 3
Optimizer = Literal["sgd", "adam"]
Data = tuple[Tensor, Tensor]
Journal = dict[tuple[Any, ...], dict[str, Any]]


# --------------------------------------------------------------------------------------------------------------- nets


@dataclass(frozen=True, slots=True)
class Net:
    """A net, what it is in words, the optimizer that trains it, and the rates that its grid starts with."""

    about: str
    build: Callable[[], nn.Module]
    optimizer: Optimizer = "sgd"
    rates: tuple[float, ...] = (0.00316, 0.01, 0.0316, 0.1, 0.316)


def resnet(depth: int, width: int, bn: bool) -> nn.Module:
    """Return a pre-activation ResNet whose stem halves the picture, so that stages see 8×8, 4×4 and 2×2."""
    model = preact_resnet(depth, width, bn=bn)
    model[0] = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
    return model


def densenet(bn: bool) -> nn.Module:
    """Return a DenseNet-BC of three blocks of three layers, growth 8, on 8×8, 4×4 and 2×2."""
    import_extras()
    from torchvision.models import DenseNet

    model = DenseNet(8, (3, 3, 3), num_init_features=16, bn_size=2, num_classes=10)
    model.features.pool0 = nn.Identity()
    made: nn.Module = model if bn else without_norm(model)
    return made


def swin() -> nn.Module:
    """Return a Swin transformer of two stages of two blocks, widths 24 and 48, patches of 4×4, windows of 2×2."""
    import_extras()
    from torchvision.models import SwinTransformer

    model: nn.Module = SwinTransformer([4, 4], 24, [2, 2], [2, 4], [2, 2], stochastic_depth_prob=0.0, num_classes=10)
    return model


NETS = {
    "resnet": Net("ResNet without BN (pre-activation, depth 32, width 8)", partial(resnet, 32, 8, False)),
    "resnet_bn": Net("ResNet with BN (pre-activation, depth 32, width 8)", partial(resnet, 32, 8, True)),
    "densenet": Net("DenseNet without BN (three blocks of three layers, growth 8)", partial(densenet, False)),
    "wrn": Net("Wide ResNet without BN (depth 8, width 32)", partial(resnet, 8, 32, False)),
    "swin": Net(
        "Swin transformer (two stages of two blocks, Adam)", swin, "adam", (0.000316, 0.001, 0.00316, 0.01, 0.0316)
    ),
    "densenet_bn": Net("DenseNet with BN (three blocks of three layers, growth 8)", partial(densenet, True)),
    "wrn_bn": Net("Wide ResNet with BN (depth 8, width 32)", partial(resnet, 8, 32, True)),
}
"""By importance: what is complete when time runs out is a beginning of this list."""


# ------------------------------------------------------------------------------------------------------------ methods

Make = Callable[[nn.Module, list[Data], Plan | None, int, Optimizer], Plan]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to a plan: ``base`` is the method whose weights it starts from (the model's own where none), and whose
    score is the one before."""

    make: Make | None = None
    base: str | None = None
    note: str = ""


def planned(name: str) -> Method:
    """Return a method of `wellposed.plan`."""
    return Method(lambda model, batches, _, seed, __: wp.plan(model, batches[0][0], method=name, seed=seed), "default")


def _gradient_norm(model: nn.Module, batches: list[Data], base: Plan | None, seed: int, _: Optimizer) -> Plan:
    return gradient_norm(model, mean_loss, batches, plan=base, seed=seed, progress=False)


def _nio(model: nn.Module, batches: list[Data], base: Plan | None, seed: int, _: Optimizer) -> Plan:
    return nio(model, mean_loss, batches, plan=base, seed=seed, progress=False)


def _gradinit(model: nn.Module, batches: list[Data], base: Plan | None, seed: int, optimizer: Optimizer) -> Plan:
    options: dict[str, Any] = {"optimizer": optimizer, "eta": 0.1 if optimizer == "sgd" else 0.001}
    return gradinit(
        model, mean_loss, batches, plan=base, iterations=100, rate=0.02, seed=seed, progress=False, **options
    )


def _metainit(model: nn.Module, batches: list[Data], base: Plan | None, seed: int, _: Optimizer) -> Plan:
    return metainit(model, mean_loss, batches, plan=base, iterations=40, rate=0.01, seed=seed, progress=False)


def _lsuv(model: nn.Module, batches: list[Data], _: Plan | None, seed: int, __: Optimizer) -> Plan:
    return lsuv(model, mean_loss, batches, seed=seed)


METHODS = {
    "default": Method(),
    "kaiming": planned("kaiming"),
    "autoinit": planned("autoinit"),
    "nio": Method(_nio, "kaiming"),
    "gradient_norm": Method(_gradient_norm, "kaiming"),
    "gradinit": Method(
        _gradinit,
        "kaiming",
        "100 iterations at rate 0.02, which reaches as far as those of NIO (paper: an epoch or more at 0.01 or less)",
    ),
    "fixup": planned("fixup"),
    "lsuv": Method(_lsuv, "default"),
    "autoinit+nio": Method(_nio, "autoinit"),
    "warm-up": Method(note="the default with one epoch of linear warm-up"),
    "metainit": Method(_metainit, "kaiming", "40 iterations (paper: 500) at rate 0.01"),
}


# ----------------------------------------------------------------------------------------------------------- one net


def batches_of(data: Data, seed: int) -> list[Data]:
    """Return one epoch of batches in the order of ``seed``."""
    order = torch.randperm(len(data[1]), generator=torch.Generator().manual_seed(seed))
    return list(zip(data[0][order].split(BATCH), data[1][order].split(BATCH), strict=True))


class Trial:
    """One net: its plans, scores and training runs, each made once and noted in the journal."""

    def __init__(self, name: str, train: Data, test: Data, folder: Path) -> None:
        self.name, self.net, self._train, self._test = name, NETS[name], train, test
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{name}-{TRAIN}x{EPOCHS}.jsonl"
        self._plans: dict[tuple[str, int], Plan | None] = {}
        self.journal: Journal = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                record = json.loads(line)
                self.journal[tuple(record.pop("key"))] = record

    def _note(self, key: tuple[Any, ...], record: dict[str, Any]) -> dict[str, Any]:
        with self._file.open("a") as file:
            file.write(json.dumps({"key": key, **record}) + "\n")
        self.journal[key] = record
        return record

    def _model(self, seed: int, plan: Plan | None = None) -> nn.Module:
        torch.manual_seed(seed)
        model = self.net.build()
        if plan is not None:
            plan.apply_(model)
        return model

    def plan(self, method: str, seed: int) -> Plan | None:
        """Return the plan of a method, None where the model's own initialisation is meant."""
        if (method, seed) not in self._plans:
            self._plans[method, seed] = self._load_or_make(method, seed)
        return self._plans[method, seed]

    def _load_or_make(self, method: str, seed: int) -> Plan | None:
        how = METHODS[method]
        if how.make is None:
            return None
        file = self._file.with_name(f"{self._file.stem}-{method}-{seed}.json")
        key = ("plan", method, seed)
        if key in self.journal and file.exists():
            return Plan.load(file)
        base = self.plan(how.base, seed) if how.base else None
        start = time.process_time()
        plan = how.make(self._model(seed), batches_of(self._train, seed), base, seed, self.net.optimizer)
        spent = time.process_time() - start
        spent += self.journal[("plan", how.base, seed)]["seconds"] if base is not None else 0.0
        plan.save(file)
        self._note(key, {"seconds": spent})
        return plan

    def score(self, method: str, seed: int) -> dict[str, Any]:
        """Return the agreement of the gradients of single samples at the start of training."""
        key = ("score", method, seed)
        if key in self.journal:
            return self.journal[key]
        batch = (self._train[0][:SCORED], self._train[1][:SCORED])
        found = gradcosine(self._model(seed, self.plan(method, seed)), mean_loss, batch, sub_batches=None)
        return self._note(key, {"cosine": found.cosine, "norm": found.norm, "ratio": found.ratio})

    def run(self, method: str, seed: int, rate: float) -> dict[str, Any]:
        """Train once; return the training loss over the last quarter (infinite if it diverged), the accuracy and the
        processor time of a step."""
        key = ("run", method, seed, rate)
        if key in self.journal:
            return self.journal[key]
        model = self._model(seed, self.plan(method, seed))
        sgd = self.net.optimizer == "sgd"
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
            if sgd
            else torch.optim.Adam(model.parameters(), lr=rate)
        )
        rising = warmup(STEPS // EPOCHS) if method == "warm-up" else (lambda step: 1.0)
        losses: list[float] = []
        start = time.process_time()
        for step, batch in enumerate(b for epoch in range(EPOCHS) for b in batches_of(self._train, 97 * seed + epoch)):
            for group in optimizer.param_groups:
                group["lr"] = rate * rising(step) * (1 + math.cos(math.pi * step / STEPS)) / 2
            optimizer.zero_grad()
            loss = mean_loss(model, batch)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
            loss.backward()
            optimizer.step()
        spent = (time.process_time() - start) / len(losses)
        accuracy = self._accuracy(model)
        final = fmean(losses[-STEPS // 4 :]) if math.isfinite(losses[-1]) and accuracy is not None else math.inf
        return self._note(key, {"loss": final, "accuracy": accuracy, "seconds": spent})

    def _accuracy(self, model: nn.Module) -> float | None:
        """Return the share of test images that are classified rightly, None where an output is not finite."""
        model.eval()
        with torch.inference_mode():
            outputs = torch.cat([model(x) for x in self._test[0].split(500)])
        return float((outputs.argmax(1) == self._test[1]).float().mean()) if outputs.isfinite().all() else None

    def search(self, method: str, rates: Sequence[float], seeds: int) -> Iterator[None]:
        """Find the best rate of a method and run it with every seed; yields before each piece of work."""
        grid = sorted(rates)
        for extension in range(EXTENSIONS + 1):
            for rate in grid:
                yield
                self.run(method, 0, rate)
            best = min(grid, key=lambda rate: self.run(method, 0, rate)["loss"])
            if extension == EXTENSIONS or grid[0] < best < grid[-1]:
                break
            further = best / FACTOR if best == grid[0] else best * FACTOR
            grid = sorted([*grid, float(f"{further:.3g}")])
        where = grid.index(best)
        for seed in range(seeds):
            for rate in (best, *grid[max(where - 1, 0) : where], *grid[where + 1 : where + 2]):
                yield
                self.run(method, seed, rate)
            for scored in {method, METHODS[method].base or method}:
                yield
                self.score(scored, seed)
        self._note(("done", method, seeds), {})

    def row(self, method: str, seeds: int) -> dict[str, Any]:
        """Return the row of a method from the journal; without an accuracy where its runs are not complete."""
        how = METHODS[method]
        row: dict[str, Any] = {"net": self.name, "method": method, "note": how.note}
        failed = self.journal.get(("failed", method))
        if failed is not None:
            return row | {"missing": failed["message"]}
        if ("done", method, seeds) not in self.journal:
            return row | {"missing": "not run to the end"}
        runs: dict[float, list[dict[str, Any]]] = {}
        for seed in range(seeds):
            for key, record in self.journal.items():
                if key[:3] == ("run", method, seed):
                    runs.setdefault(key[3], []).append(record)
        full = {rate: found for rate, found in runs.items() if len(found) == seeds}
        rate = min(full, key=lambda rate: fmean(run["loss"] for run in full[rate]))
        row |= {"rate": rate, "rates": len(runs), "seeds": seeds, "edge": rate in (min(runs), max(runs))}
        row["curve"] = [
            [r, [run["loss"] for run in runs[r]], [run["accuracy"] for run in runs[r]]] for r in sorted(runs)
        ]
        for figure in ("loss", "accuracy"):
            values = [run[figure] for run in full[rate]]
            known = None not in values and all(map(math.isfinite, values))
            row[figure], row[f"{figure}_std"] = (fmean(values), stdev(values)) if known and seeds > 1 else (None, None)
        step = min(run["seconds"] for key, run in self.journal.items() if key[0] == "run")
        if how.make is not None:
            row["seconds"] = fmean(self.journal["plan", method, seed]["seconds"] for seed in range(seeds))
            row["steps"] = row["seconds"] / step
        for when, name in (("before", how.base), ("after", method)):
            if name is None:
                continue
            for figure in ("cosine", "norm", "ratio"):
                values = [self.journal["score", name, seed][figure] for seed in range(seeds)]
                row[f"{figure}_{when}"] = (
                    fmean(values) if figure == "cosine" else math.exp(fmean(map(math.log, values)))
                )
        return row

    def work(self, method: str, rates: Sequence[float], seeds: int, in_time: Callable[[], bool]) -> bool:
        """Do what is left of a method's work; a method that cannot plan this net is noted. Returns whether time is
        left."""
        if ("failed", method) in self.journal or ("done", method, seeds) in self.journal:
            return in_time()
        try:
            for _ in self.search(method, rates, seeds):
                if not in_time():
                    return False
        except WellposedError as error:
            self._note(("failed", method), {"message": str(error)})
        return in_time()


# ------------------------------------------------------------------------------------------------------------ tables

COLUMNS = {
    "method": "method",
    "shown": "test accuracy (%)",
    "train": "training loss",
    "best": "best rate",
    "seconds": "plan (s)",
    "steps": "plan (training steps)",
    "cosine": "GradCosine",
    "norm": "gradient norm",
    "ratio": "max / min norm",
}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a row: means ± std over seeds, and figures before → after the method."""
    if "missing" in row:
        return {"method": row["method"], "shown": row["missing"].partition(":")[0]}
    cells = {"method": row["method"] + ("*" if row["note"] else ""), "seconds": row.get("seconds")}
    if row["accuracy"] is not None:
        cells["shown"] = f"{100 * row['accuracy']:.1f} ± {100 * row['accuracy_std']:.1f}"
        cells["train"] = f"{row['loss']:.3f} ± {row['loss_std']:.3f}"
    else:
        cells["shown"] = "diverged"
    cells["best"] = f"{row['rate']:.3g}" + (" (end of grid)" if row["edge"] else "")
    cells["steps"] = round(row["steps"]) if "steps" in row else None
    for figure in ("cosine", "norm", "ratio"):
        found = [f"{row[f'{figure}_{when}']:.3g}" for when in ("before", "after") if f"{figure}_{when}" in row]
        cells[figure] = " → ".join(found)
    return cells


def verdict(rows: Sequence[dict[str, Any]]) -> str:
    """Return, in words, which methods are best on a net, and which are not told apart from the best."""
    done = sorted((row for row in rows if row.get("accuracy") is not None), key=lambda row: -row["accuracy"])
    if not done:
        return ""
    best, *others = done

    def error(row: dict[str, Any]) -> float:
        return math.hypot(best["accuracy_std"], row["accuracy_std"]) / math.sqrt(row["seeds"])

    near = [row["method"] for row in others if best["accuracy"] - row["accuracy"] <= 2 * error(row)]
    names = ", ".join(near) if near else "none"
    return f"Best: {best['method']}. Within two standard errors of it: {names}."


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the text of the results: a table for each net, and what was reduced."""
    told = [
        f"{TRAIN:,} images for {EPOCHS} epochs ({STEPS} steps of {BATCH}), {TEST:,} test images, of CIFAR-10 at "
        f"{SIDE}×{SIDE}. Mean ± std over seeds at each method's best rate, chosen by training loss (mean of the last "
        "quarter of the steps). *GradCosine*, *gradient norm* and *max / min norm* compare the gradients of "
        f"{SCORED} single samples before → after; before is Kaiming for refinements (AutoInit for autoinit+nio), and "
        "the model's own initialisation for plans and LSUV. Plans are timed in processor time, the plan that they "
        f"start from included; training itself takes {STEPS} steps."
    ]
    for net in dict.fromkeys(row["net"] for row in rows):
        of_net = [row for row in rows if row["net"] == net]
        told.append(f"### {NETS[net].about}")
        if all("missing" in row for row in of_net):
            told.append("Not run.")
            continue
        told += [markdown([shown(row) for row in of_net], COLUMNS), verdict(of_net)]
    notes = {row["method"]: row["note"] for row in rows if row["note"]}
    told.append("\\* " + "; ".join(f"{method}: {note}" for method, note in notes.items()) + ".")
    return "\n\n".join(told)


def main() -> None:
    """Run the benchmark and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with train.parquet of CIFAR-10")
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS), metavar="NET")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--rates", nargs="+", type=float, help="the rates that the grid starts with")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop in time")
    parser.add_argument(
        "--journals", type=Path, default=JOURNALS, help="where finished runs are noted; delete it after a change"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    x, y = images(options.data, TRAIN + TEST)
    train, test = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
    trials = [Trial(name, train, test, options.journals) for name in options.nets]
    for trial in trials:
        for method in options.methods:
            rates = options.rates or trial.net.rates
            if not trial.work(method, rates, options.seeds, lambda: time.monotonic() < end):
                break
            print(json.dumps({k: v for k, v in trial.row(method, options.seeds).items() if k != "curve"}), flush=True)
    rows = [trial.row(method, options.seeds) for trial in trials for method in options.methods]
    write("benefit", summary(rows), rows, options.out)


if __name__ == "__main__":
    main()
