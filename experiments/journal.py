"""The journal of one experiment at one scale: a line for each finished unit, so that a killed run goes on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.registry import Row, Unit

JOURNALS = Path("build") / "experiments"
CHECKPOINTS = JOURNALS / "checkpoints"
"""What a run that was killed goes on from: its finished units, and the last epoch of one that was cut."""


def run_key(name: str, settings: Mapping[str, Any], data: str, version: str) -> str:
    """Return the name of a run's checkpoints: another one for each experiment, settings, data and version."""
    return f"{name}-{digest({'settings': dict(settings), 'data': data, 'version': version})}".lower()


def key_of(unit: Unit) -> str:
    """Return what tells a unit from all others: its JSON, keys sorted."""
    return json.dumps(dict(unit), sort_keys=True)


def digest(value: Mapping[str, Any]) -> str:
    """Return twelve letters that tell JSON values apart."""
    return hashlib.sha256(json.dumps(dict(value), sort_keys=True).encode()).hexdigest()[:12]


class Journal:
    """Finished units in a file of JSON lines, one flushed write each; a line cut off by a kill is dropped.

    The file's name holds a digest of everything that a row depends on (settings, data, version), so that rows of
    other settings or of another version are never mixed in: they lie in files of their own.

    Args:
        folder: where journals lie.
        header: what the rows depend on; ``experiment`` and ``scale`` are in it.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.path = folder / f"{header['experiment']}-{header['scale']}-{digest(header)}.jsonl".lower()
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        self._entries: dict[str, dict[str, Any]] = {}
        for line in whole.splitlines():
            entry = json.loads(line)
            self._entries[key_of(entry["unit"])] = entry

    def __contains__(self, unit: Unit) -> bool:
        return key_of(unit) in self._entries

    def row(self, unit: Unit) -> Row:
        """Return a finished unit's row: the unit, and what was found."""
        entry = self._entries[key_of(unit)]
        return {**entry["unit"], **entry["found"]}

    @property
    def seconds(self) -> float:
        """Wall time of all finished units together."""
        return sum(float(entry["seconds"]) for entry in self._entries.values())

    def add(self, unit: Unit, found: Row, seconds: float) -> None:
        """Note a finished unit; ``found`` is strict JSON."""
        entry = {"unit": dict(unit), "found": found, "seconds": seconds}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write((json.dumps(entry, allow_nan=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        self._entries[key_of(unit)] = entry

    def clear(self) -> None:
        """Forget all units."""
        self.path.unlink(missing_ok=True)
        self._entries.clear()
