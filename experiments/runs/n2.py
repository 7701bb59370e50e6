"""N2: time and memory of an iteration of NIO over the number of sub-batches D and their overlap r."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from benchmarks.common import cross_entropy, measured, training_step
from torch import nn

import wellposed as wp
from experiments.data import load_images
from experiments.feed import Batch, batches_of, device
from experiments.models import net_for_nio
from experiments.numbers import mean
from experiments.registry import Agreement, Experiment, Judgement, Row, Settings, Unit, experiment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEP = "training step"
ITERATIONS = 100
"""T, of Algorithm 3."""
PAPER = {"time": 1.25, "memory": 1.41}
"""By how many times both grow from D = 2 to D = 4: 3.75 to 4.68 s, 5,007 to 7,067 MB."""
GROWS = 1.1
"""From which ratio on something grows."""
NIO, PUBLISHED = "NIO", "NIO, published"
"""Algorithm 3, with a pass for each sub-batch; and the form of the authors' code, with one pass of the whole batch."""
VERDICTS: tuple[Agreement, ...] = ("does not agree", "does not agree", "agrees in direction", "agrees")
"""By how many of the three parts of the claim hold: time grows with D, memory does, share of a training."""


@experiment("N2")
class Cost(Experiment):
    """Processor time and growth of the peak memory, in a process of its own; on a GPU wall time and its peak memory."""

    title = "Time and memory of NIO over D and r"
    source = "NIO, table 3"
    claim = (
        "Time and memory of an iteration grow with the number of sub-batches D, and a whole refinement costs next to "
        "nothing compared with the training."
    )
    paper = (
        "ResNet-110 on CIFAR-100: 3.75 s and 5,007 MB at D = 2, 4.68 s and 7,067 MB at D = 4 (×1.25, ×1.41); "
        "accuracy 75.56 to 76.03 % over D and r, not significantly different, Kaiming's 74.54 %; ResNet-50 on "
        "ImageNet: 0.03 h of 8.5 h. Accuracy over D and r is N6"
    )
    use = "The cost of NIO is no reason against it."
    reversal = "nothing that a larger run decides: memory follows from how the passes are made"
    stated: ClassVar[dict[str, Any]] = {"net.depth": 110, "batch": 128, "sub_batches": [2, 3, 4]}
    held = ("sub_batches",)
    listed = ("forms",)

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield a training step, and an iteration of each form for each D and r."""
        yield {"what": STEP, "D": 0, "r": 0.0}
        for form in settings.forms:
            for count in settings.sub_batches:
                for overlap in settings.overlaps:
                    yield {"what": str(form), "D": count, "r": overlap}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Time one step, or an iteration: the difference between refinements of one iteration and of some more."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        build = partial(net_for_nio, "resnet", settings.bn, settings.net)
        (batch,) = batches_of(images, settings.batch, 1)
        cost = _on_gpu if torch.cuda.is_available() else measured
        if unit["what"] == STEP:
            seconds, memory = cost(training_step, build, batch, repeats=settings.repeats)
            return {"seconds": seconds, "memory_mb": memory}
        told = {"sub_batches": unit["D"], "overlap": unit["r"]}
        told |= {"form": "published"} if unit["what"] == PUBLISHED else {"engine": settings.engine}
        short, _ = cost(_nio, build, batch, told, 1, repeats=settings.repeats)
        long, memory = cost(_nio, build, batch, told, 1 + settings.iterations, repeats=settings.repeats)
        return {"seconds": (long - short) / settings.iterations, "memory_mb": memory}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare time and memory at the largest D and the smallest, and a whole refinement with a training.

        The verdict is that of the authors' form where it was run: it made their figures.
        """
        step = next(row for row in rows if row["what"] == STEP)
        forms = [form for form in (NIO, PUBLISHED) if any(row["what"] == form for row in rows)]
        if not step["memory_mb"]:
            ours = "a training step's memory is too little to be measured"
            return Judgement(ours, "not decided at this scale", "Take a larger net.")
        told, sentences, outcome = [], [], VERDICTS[0]
        for form in forms:
            times, memory = (
                {(row["D"], row["r"]): _of_step(row, step, key) for row in rows if row["what"] == form}
                for key in ("seconds", "memory_mb")
            )
            told.append(f"{form}: {_spread(settings, times, memory)}")
            if min(times.values()) <= 0:
                outcome = "not decided at this scale"
                sentences.append(f"{form}: timing noise exceeds an iteration")
                continue
            sentence, outcome = _growth(settings, times, memory)
            sentences.append(f"{form}: {sentence}")
        rest = (
            f"below ×{GROWS} counts as not growing, and a share below 1 % as 'next to nothing'; Algorithm 3 has a pass "
            "for each sub-batch, and frees it before the next: so its memory cannot grow with D; the authors' form has "
            f"one pass of the whole batch; the verdict is that of {forms[-1]}."
        )
        return Judgement("; ".join(told), outcome, "; ".join([*sentences, rest]))

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw time and memory over r, a line for each form and D."""
        step, *others = rows
        panels = figure.subplots(1, 2)
        for panel, key, label in zip(panels, ("seconds", "memory_mb"), ("time", "memory"), strict=True):
            for form, line in ((NIO, "o-"), (PUBLISHED, "s--")):
                for index, count in enumerate(settings.sub_batches):
                    mine = [
                        (row["r"], _of_step(row, step, key))
                        for row in others
                        if (row["what"], row["D"]) == (form, count)
                    ]
                    if mine:
                        panel.plot(
                            *zip(*mine, strict=True), line, color=f"C{index}", ms=3, label=f"{form}, D = {count}"
                        )
            panel.set(xlabel="overlap r", ylabel=f"{label} / that of a training step", ylim=(0, None))
        panels[0].legend(fontsize=6)


Costs = Mapping[tuple[int, float], float]
"""What an iteration takes, as a share of a training step's, by D and r."""


def _spread(settings: Settings, times: Costs, memory: Costs) -> str:
    """Return the cheapest and the dearest setting, and memory over D, in words."""
    least, most = min(times, key=lambda k: times[k]), max(times, key=lambda k: times[k])
    return (
        f"an iteration takes {times[least]:.1f} (D={least[0]}, r={least[1]}) to {times[most]:.1f} (D={most[0]}, "
        f"r={most[1]}) training steps, memory at r={settings.overlaps[0]}: "
        + ", ".join(f"D={d} {memory[d, settings.overlaps[0]]:.2f}" for d in settings.sub_batches)
        + " of a training step's"
    )


def _growth(settings: Settings, times: Costs, memory: Costs) -> tuple[str, Agreement]:
    """Return how time and memory grow with D, with the verdict on them and on the share of a training."""
    few, many = settings.sub_batches[0], settings.sub_batches[-1]
    share = ITERATIONS * max(times.values()) / settings.training_steps
    grow = {
        what: mean(known[many, r] / known[few, r] for r in settings.overlaps)
        for what, known in (("time", times), ("memory", memory))
    }
    told = ", ".join(f"{what} ×{ratio:.2f} (paper ×{PAPER[what]})" for what, ratio in grow.items())
    sentence = (
        f"from D = {few} to D = {many}, on average over r, {told}, and {ITERATIONS} iterations of the most expensive "
        f"setting take {100 * share:.2g} % of {settings.training_steps:,} training steps"
    )
    return sentence, VERDICTS[sum(ratio > GROWS for ratio in grow.values()) + (share < 0.01)]


def _of_step(row: Row, step: Row, key: str) -> float:
    """Return what a row took as a share of a training step's; NaN where that was too little to be measured."""
    return float(row[key]) / float(step[key]) if step[key] else math.nan


def _nio(model: nn.Module, batch: Batch, told: dict[str, Any], iterations: int) -> Callable[[], Any]:
    """Return a call that refines for some iterations."""
    return partial(wp.gradients.nio, model, cross_entropy, [batch], iterations=iterations, progress=False, **told)


def _on_gpu(prepare: Callable[..., Callable[[], Any]], build: Callable[[], nn.Module], *told: Any, repeats: int) -> Any:
    """Return the least wall time of a call in seconds, and the peak of the GPU's memory above the model's in MB."""
    call = prepare(build().to(device()), *told)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats + 1):  # the first warms up
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:]), (torch.cuda.max_memory_allocated() - before) / 2**20
