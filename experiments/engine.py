"""Running an experiment: its units one after the other in this process, or spread by Ray; finished ones are kept."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from benchmarks.common import plain

import wellposed as wp
from experiments.data import name_of
from experiments.errors import ExperimentError
from experiments.journal import CHECKPOINTS, JOURNALS, Journal, run_key
from experiments.registry import Experiment, Row, Unit, find
from experiments.results import FOLDER, Result, machine, path_of, read, write
from experiments.settings import as_plain, from_plain, load_settings

Engine = Literal["local", "ray"]
ROOT = Path(__file__).resolve().parents[1]


def run(
    name: str,
    scale: str,
    *,
    data: str | None = None,
    engine: str = "local",
    overrides: Sequence[str] = (),
    again: bool = False,
    runs_per_gpu: int = 1,
    journals: Path = JOURNALS,
    results: Path | None = None,
    say: Callable[[str], None] = print,
) -> Result:
    """Run an experiment at a scale, or return its result where this version has finished it with these settings.

    Args:
        name: the experiment's id.
        scale: smoke, laptop, gpu or paper.
        data: a hub name, a local folder or ``synthetic``; None for what the settings say.
        engine: ``local`` or ``ray``.
        overrides: of settings, such as ``train.epochs=2``.
        again: run also what is finished.
        runs_per_gpu: how many units of engine ``ray`` share a GPU, where there are GPUs.
        journals: where finished units are noted, so that a run that was killed goes on.
        results: where results lie; None for ``experiments/results``, and beside the journals where a result is no
            evidence of its scale: at scale smoke, with overrides, or with other data than the settings name.
        say: told how far it is.

    Raises:
        ExperimentError: an unknown experiment, scale, setting or engine; data that cannot be read.
    """
    experiment = find(name)
    settings = load_settings(experiment.name, scale, overrides)
    source = data if data is not None else str(settings.data.source)
    if engine not in _ENGINES:
        raise ExperimentError(f"no engine {engine!r}; known: {', '.join(_ENGINES)}")
    header: dict[str, Any] = {
        "experiment": experiment.name,
        "scale": scale,
        "settings": as_plain(settings),
        "data": name_of(source),
        "version": wp.__version__,
    }
    if results is None:
        other = bool(overrides) or header["data"] != name_of(str(settings.data.source))
        results = journals if scale == "smoke" or other else FOLDER
    path = path_of(experiment.name, scale, results)
    if path.exists() and not again:
        old = read(path)
        if old.current and (old.settings, old.data) == (header["settings"], header["data"]):
            say(f"{experiment.name} at scale {scale} is finished ({path.name}); --again repeats it")
            return old
    journal = Journal(journals, header)
    if again:
        journal.clear()
        kept = run_key(experiment.name, header["settings"], header["data"], header["version"])
        shutil.rmtree(CHECKPOINTS / kept, ignore_errors=True)
    units = list(experiment.units(settings))
    earlier = "" if again else _keep(experiment, header, units, path, journal)
    todo = [unit for unit in units if unit not in journal]
    say(f"{experiment.name} ({experiment.title}), {scale}: {len(todo)} of {len(units)} units to run")
    for done, (unit, found, seconds) in enumerate(
        _ENGINES[engine](experiment.name, header["settings"], todo, source, runs_per_gpu), 1
    ):
        journal.add(unit, found, seconds)
        say(f"  {done}/{len(todo)} {' '.join(f'{k}={v}' for k, v in unit.items())}: {seconds:.1f} s")
    result = Result(
        experiment=experiment.name,
        scale=scale,
        settings=header["settings"],
        data=header["data"],
        environment=machine(),
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        seconds=round(journal.seconds, 1),
        rows=[journal.row(unit) for unit in units],
        earlier=earlier,
    )
    say(f"written: {write(result, results)}")
    return result


def _keep(experiment: Experiment, header: Row, units: Sequence[Unit], path: Path, journal: Journal) -> str:
    """Note units of a stored result whose settings differ in lists of units alone; return when it was finished."""
    if not path.exists() or not (old := read(path)).current or old.data != header["data"]:
        return ""
    mine, theirs = (
        {k: v for k, v in of.items() if k not in experiment.listed} for of in (header["settings"], old.settings)
    )
    if mine != theirs:
        return ""
    for unit in (unit for unit in units if unit not in journal):
        rows = [row for row in old.rows if unit.items() <= row.items()]
        if rows:  # units may have further keys: the row with the fewest is the unit's own
            row = min(rows, key=len)
            journal.add(unit, {k: v for k, v in row.items() if k not in unit}, round(old.seconds / len(old.rows), 3))
    return old.date


def execute(name: str, settings: dict[str, Any], unit: Unit, data: str) -> tuple[Row, float]:
    """Run one unit; return what it found, as strict JSON holds it, and the wall time in seconds."""
    start = time.perf_counter()
    found = plain(find(name).run(from_plain(settings), unit, data))
    return found, round(time.perf_counter() - start, 3)


Done = Iterator[tuple[Unit, Row, float]]


def _local(name: str, settings: dict[str, Any], units: Sequence[Unit], data: str, _: int) -> Done:
    for unit in units:
        yield unit, *execute(name, settings, unit, data)


def _ray(name: str, settings: dict[str, Any], units: Sequence[Unit], data: str, runs_per_gpu: int) -> Done:
    try:
        import ray
    except ImportError as error:
        raise ExperimentError("engine 'ray' needs Ray: pip install 'wellposed[ray]'; or --engine local") from error
    if not ray.is_initialized():
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}, log_to_driver=False)
    share = 1 / runs_per_gpu if ray.cluster_resources().get("GPU") else 0
    remote = ray.remote(num_cpus=1, num_gpus=share)(execute)
    if (folder := Path(data).expanduser()).is_dir():
        data = str(folder.resolve())  # workers have working directories of their own
    waiting = {remote.remote(name, settings, dict(unit), data): unit for unit in units}
    while waiting:
        (ready,), _ = ray.wait(list(waiting))
        yield waiting.pop(ready), *ray.get(ready)


_ENGINES = {"local": _local, "ray": _ray}
