"""Starts: what initial weights do to a training, in small trainings over many fields.

    python benchmarks/starts/run.py [--set chosen|aside|all] [--tasks NAME ...] [--arms own default autoinit ...]
        [--seeds 3] [--jobs 1] [--journal FILE ...] [--out docs/results] [--scale cpu|gpu] [--data DIR] [--steps N]

Each arm of each task is trained at its best rate: the rate is chosen on two seeds from the task's grid, which goes on
by half a decade, at most twice, where the best lies at an end. Then the arm is judged on ``--seeds`` others. Every
training that ends is a line of the journal, and what the journal holds is not run again. The table holds the arms that
are complete. ``aside.md`` notes each use of tasks that are set aside: they are there to judge a start, once, and not to
choose one. ``--steps`` shortens every training, to see that all of them run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch  # noqa: E402

import training_data  # noqa: E402
from common import RESULTS  # noqa: E402
from starts.arms import applies, arm  # noqa: E402
from starts.catalogue import tasks  # noqa: E402
from starts.journal import Journal, Record, outcome  # noqa: E402
from starts.report import write_report  # noqa: E402
from starts.task import Task, train  # noqa: E402
from wellposed.errors import WellposedError  # noqa: E402

ASIDE = Path(__file__).with_name("aside.md")
COMPARED = ("own", "default", "autoinit")


def options() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=("chosen", "aside", "all"), default="all")
    parser.add_argument("--tasks", nargs="*", help="names of tasks; all of the set without it")
    parser.add_argument("--arms", nargs="*", default=list(COMPARED))
    parser.add_argument("--seeds", type=int, default=3, help="fresh seeds that an arm is judged on")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--journal", type=Path, nargs="+", default=[Path("build/starts/journal.jsonl")], help="more are read"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--name", default="starts", help="of the files in --out")
    parser.add_argument("--scale", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--data", type=Path, default=training_data.DATASETS)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--report", action="store_true", help="write the report of what is there, and train nothing")
    return parser.parse_args()


def suite(steps: int | None) -> list[Task]:
    """Return all tasks, with another number of steps if one is given."""
    return [replace(task, steps=steps or task.steps) for task in tasks()]


def selected(asked: argparse.Namespace) -> list[Task]:
    """Return the tasks that are asked for."""
    known = [task for task in suite(asked.steps) if task.scale == asked.scale and asked.set in ("all", task.set)]
    unknown = sorted(set(asked.tasks or ()) - {task.name for task in known})
    if unknown:
        raise SystemExit(f"no such tasks: {', '.join(unknown)}; there are {', '.join(task.name for task in known)}")
    return [task for task in known if not asked.tasks or task.name in asked.tasks]


def compare(named: str, name: str, asked: argparse.Namespace) -> str:
    """Run what the journal does not hold of an arm on a task; return a line that says how it went."""
    (task,) = (task for task in suite(asked.steps) if task.name == named)  # tasks hold functions, which do not travel
    if task.scale == "cpu":
        torch.set_num_threads(1)
    journal, start = Journal(*asked.journal), arm(name)
    device = "cuda" if task.scale == "gpu" and torch.cuda.is_available() else "cpu"

    def training(rate: float, seed: int) -> Record:
        try:
            return journal.find(task, name, rate, seed)
        except KeyError:
            found = train(task, start, rate, seed, device)
        told = {"task": task.name, "arm": name, "rate": rate, "seed": seed, "steps": task.steps}
        return journal.add(told | found)

    begun = time.perf_counter()
    try:
        done = outcome(task, asked.seeds, training)
    except WellposedError as refusal:
        return f"{task.name}, {name}: refused: {refusal}"
    losses = " ".join(f"{record['final']:.4g}" for record in done.judged)
    return f"{task.name}, {name}: {losses} at {done.rate:g}, {time.perf_counter() - begun:.0f} s"


def note_aside(chosen: list[Task], arms: list[str]) -> None:
    """Note that tasks which are set aside were used."""
    used = [task.name for task in chosen if task.set == "aside"]
    if used:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ASIDE.parent, capture_output=True, text=True, check=False
        ).stdout.strip()
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        with ASIDE.open("a") as file:
            file.write(f"| {now} | {commit or 'unknown'} | {', '.join(arms)} | {', '.join(used)} |\n")


def main() -> None:
    """Run what is missing, and write the report."""
    asked = options()
    training_data.DATASETS = asked.data
    chosen = selected(asked)
    if not asked.report:
        if not asked.steps:
            note_aside(chosen, asked.arms)
        todo = [(task.name, name, asked) for task in chosen for name in asked.arms if applies(name, task)]
        with ProcessPoolExecutor(asked.jobs) as pool:
            for line in pool.map(compare, *zip(*todo, strict=True)):
                print(line, flush=True)
    write_report(asked.name, chosen, asked.arms, asked.seeds, Journal(*asked.journal), asked.out)


if __name__ == "__main__":
    main()
