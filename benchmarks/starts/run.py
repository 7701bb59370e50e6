"""Measure what a start does to a training: tasks × arms, each arm at its own best rate.

    python benchmarks/starts/run.py [--set chosen] [--tasks vit gpt] [--arms own default] [--minutes 60]
        [--journal build/starts/journal.jsonl] [--scale cpu] [--out docs/results]

``--set`` is half of the tasks (``chosen``, ``aside``), both (``all``), or regressions beside them (``values``).

An arm is the name of one of `arms.ARMS`, or of a method with options: ``topology:merge=preserve``; what follows ``@``
is a label that keeps a candidate's trainings apart; ``default`` stands for the library's default method. A rate is
chosen on seeds 0 and 1 from a grid of half decades, which goes on where the best lies at an end, and judged on other
seeds. Each finished training is a line of the journal, and what is there is not run again. With ``--out`` nothing is
trained: tables and a picture are written from the journal, for all of its arms unless some are named.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


def arguments(told: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sets = ("chosen", "aside", "all", "values")
    parser.add_argument("--set", choices=sets, help="which tasks; chosen, with --out all")
    parser.add_argument("--tasks", nargs="+", help="names of tasks, in place of a half")
    parser.add_argument("--arms", nargs="+", help="own and default unless told, with --out all of the journal")
    parser.add_argument("--scale", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--journal", type=Path, help="build/starts/journal.jsonl, or journal-gpu.jsonl")
    parser.add_argument("--judging", type=int, nargs="+", help="seeds that the best rate is judged on")
    parser.add_argument("--steps", type=int, help="of every training, for a trial")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which nothing new is begun")
    parser.add_argument("--once", action="store_true", help="print one training for each task and arm")
    parser.add_argument("--out", type=Path, help="write tables of the journal, without training")
    return parser.parse_args(told)


def main() -> None:
    """Run what the options say."""
    import torch

    import wellposed as wp
    from starts import sweep
    from starts.catalogue import ASIDE, CHOSEN, TASKS, VALUES
    from starts.large import LARGE
    from starts.once import once
    from starts.report import report

    options = arguments()
    torch.set_num_threads(1)
    large = options.scale == "gpu"
    known = LARGE if large else TASKS | VALUES
    halves = {"chosen": CHOSEN, "aside": ASIDE, "all": tuple(TASKS), "values": tuple(VALUES)}
    names = options.tasks or (tuple(LARGE) if large else halves[options.set or ("all" if options.out else "chosen")])
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no task {unknown[0]!r}; there are {', '.join(known)}")
    tasks = [sweep.shortened(known[name], options.steps) for name in names]
    default = str(inspect.signature(wp.plan).parameters["method"].default)
    arms = [default if arm == "default" else arm for arm in options.arms or ([] if options.out else ["own", "default"])]
    device = "cuda" if large and torch.cuda.is_available() else "cpu"
    if options.once:
        once(tasks, arms, device)
        return
    journal = sweep.Journal(options.journal or Path("build") / "starts" / f"journal{'-gpu' if large else ''}.jsonl")
    judging = options.judging or sweep.JUDGING
    if options.out:
        name = "starts_gpu" if large else "starts_values" if options.set == "values" else "starts"
        report(tasks, arms, journal, ASIDE, options.out, name, judging, default)
        return

    def aside(commit: str, arms: Sequence[str], used: Sequence[str]) -> None:
        held = [name for name in used if name in ASIDE]
        done = {(task, arm) for task, arm, *_ in journal.found} | set(journal.refused)
        new = [arm for arm in arms if any((name, arm) not in done for name in held)]
        if new and options.steps is None:
            sweep.note_use(HERE / "aside.md", commit, new, held)

    sweep.run(tasks, arms, journal, device=device, judging=judging, aside=aside, minutes=options.minutes)


if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)
    main()
