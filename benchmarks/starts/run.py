"""Measure what a start does to a training: tasks × arms, each arm at its own best rate.

    python benchmarks/starts/run.py [--set chosen] [--tasks vit gpt] [--arms own default] [--minutes 60]
        [--journal build/starts/journal.jsonl] [--scale cpu] [--out docs/results]

An arm is the name of one of `arms.ARMS`, or of a method with options: ``topology:merge=preserve``; what follows ``@`` is
a label that keeps a candidate's trainings apart. A rate is chosen on seeds 0 and 1 from a grid of half decades, which
goes on where the best lies at an end, and judged on other seeds. Each finished training is a line of the journal, and
what is there is not run again. With ``--out`` the tables are written from the journal.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STANDARD = ("own", "default")


def arguments(told: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("chosen", "aside", "all"), default="chosen", help="half of the tasks")
    parser.add_argument("--tasks", nargs="+", help="names of tasks, in place of a half")
    parser.add_argument("--arms", nargs="+", default=list(STANDARD))
    parser.add_argument("--scale", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--judging", type=int, nargs="+", help="seeds that the best rate is judged on")
    parser.add_argument("--steps", type=int, help="of every training, for a trial")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which nothing new is begun")
    parser.add_argument(
        "--once", action="store_true", help="one training for each task and arm, at a middle rate; told"
    )
    parser.add_argument("--out", type=Path, help="write tables of the journal, without training")
    return parser.parse_args(told)


def main() -> None:
    """Run what the options say."""
    import torch

    from starts import sweep
    from starts.catalogue import ASIDE, CHOSEN, TASKS
    from starts.once import once

    options = arguments()
    torch.set_num_threads(1)
    known = TASKS
    names = options.tasks or {"chosen": CHOSEN, "aside": ASIDE, "all": tuple(TASKS)}[options.set]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no task {unknown[0]!r}; there are {', '.join(known)}")
    tasks = [sweep.shortened(known[name], options.steps) for name in names]
    if options.once:
        once(tasks, options.arms)
        return
    journal = sweep.Journal(options.journal or Path("build") / "starts" / "journal.jsonl")

    def aside(commit: str, arms: list[str], used: list[str]) -> None:
        held = [name for name in used if name in ASIDE]
        done = {(task, arm) for task, arm, *_ in journal.found} | set(journal.refused)
        new = [arm for arm in arms if any((name, arm) not in done for name in held)]
        if new and options.steps is None:
            sweep.note_use(HERE / "aside.md", commit, new, held)

    sweep.run(
        tasks, options.arms, journal, device="cpu", choosing=sweep.CHOOSING,
        judging=options.judging or sweep.JUDGING, aside=aside, minutes=options.minutes,
    )  # fmt: skip


if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)
    main()
