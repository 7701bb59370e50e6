"""Results on disk: one small JSON file for each experiment and scale, with everything that it depends on."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import environment

import wellposed as wp
from experiments.errors import ExperimentError
from experiments.registry import Row

FOLDER = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Result:
    """What an experiment found at a scale.

    Attributes:
        experiment, scale: which.
        settings: the composed YAML, the seed among them.
        data: the data's name.
        environment: machine and versions; ``wellposed`` is the version that made it.
        date: when it was finished, UTC.
        seconds: wall time of all units together.
        rows: one for each unit.
        earlier: when the result was finished that rows were kept of, as arms were added; empty where there was none.
    """

    experiment: str
    scale: str
    settings: dict[str, Any]
    data: str
    environment: dict[str, str]
    date: str
    seconds: float
    rows: list[Row]
    earlier: str = ""

    @property
    def current(self) -> bool:
        """Whether this version of wellposed made it."""
        return self.environment["wellposed"] == wp.__version__


def machine() -> dict[str, str]:
    """Return the machine and the versions that a result depends on; the accelerator's kind where there is one."""
    import torch

    found = environment() | {"wellposed": wp.__version__}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def path_of(name: str, scale: str, folder: Path = FOLDER, version: str = "") -> Path:
    """Return where a result lies; with ``version``, where one of an earlier version is kept."""
    return folder / f"{name}-{scale}{f'-v{version}' if version else ''}.json".lower()


def read(path: Path) -> Result:
    """Return the result in a file.

    Raises:
        ExperimentError: the file holds no result.
    """
    try:
        return Result(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ExperimentError(
            f"{path.name} holds no result of an experiment ({error}); remove it and run anew"
        ) from error


def write(result: Result, folder: Path = FOLDER) -> Path:
    """Write a result in one move; one of another version that is there is kept under its version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(result.experiment, result.scale, folder)
    if path.exists() and not (old := read(path)).current:
        path.rename(path_of(old.experiment, old.scale, folder, old.environment["wellposed"]))
    fresh = path.with_suffix(".part")
    fresh.write_text(_json(asdict(result)))
    os.replace(fresh, path)
    return path


def found(folder: Path = FOLDER) -> Sequence[Result]:
    """Return all results, those of earlier versions included, by experiment, scale and date."""
    return sorted((read(path) for path in folder.glob("*.json")), key=lambda r: (r.experiment, r.scale, r.date))


def _json(document: dict[str, Any]) -> str:
    """Return JSON with a line for each row and one for each other entry: small, and its changes can be read."""
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items() if key != "rows"
    ]
    rows = ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in document["rows"])
    return "{\n" + ",\n".join(lines) + f',\n "rows": [\n{rows}\n ]\n}}\n'
