"""A search's journal: one line for every run that has ended, so that a search that was killed goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from wellposed import ranks
from wellposed.errors import RateError, joined
from wellposed.plans.files import read_whole
from wellposed.rates.ensemble import Member, Outcome
from wellposed.showing import short

_KIND = "wellposed.rates"
_VERSION = 1
_LONG, _BEFORE = 60, 16
"""Characters of a setting from which on it is shown from where it differs, and how much before that. Chosen."""


class Journal:
    """The runs of one search, in a file of JSON lines.

    The first line holds the settings that every run depends on; a journal of other settings is refused. Each append is
    one write, flushed to the disk. A last line that was cut off by a kill is dropped.

    Args:
        path: the file; it is made where it does not exist.
        settings: what the runs depend on, by name.

    Raises:
        RateError: the file is no journal, a damaged one, or one of other settings.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, JsonValue]) -> None:
        """Read the runs of an earlier search of the same settings, or begin the file."""
        self._path = Path(path)
        self.outcomes: dict[Member, Outcome] = {}
        header = json.loads(json.dumps({"kind": _KIND, "version": _VERSION, "settings": dict(settings)}))
        try:
            content = read_whole(path)
        except FileNotFoundError:
            content = b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        lines = whole.splitlines()
        if not lines:
            self._append([header])
            return
        self._check(self._parsed(lines[0], 1), header)
        for number, line in enumerate(lines[1:], 2):
            entry = self._parsed(line, number)
            try:
                outcome = Outcome(
                    rate=float(entry["rate"]),
                    seed=int(entry["seed"]),
                    start=float(entry["start"]),
                    loss=None if entry["loss"] is None else float(entry["loss"]),
                    steps=None if entry.get("steps") is None else int(entry["steps"]),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise RateError(f"{self._path}, line {number}: no run of a search; {_AWAY}") from error
            self.outcomes[Member(outcome.rate, outcome.seed)] = outcome

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Note the runs that have ended."""
        fresh = list(outcomes)
        self.outcomes.update({Member(o.rate, o.seed): o for o in fresh})
        self._append([asdict(outcome) for outcome in fresh])

    def _append(self, entries: Iterable[Mapping[str, object]]) -> None:
        """Add entries as lines, in one write that is on the disk when this returns."""
        text = "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in entries).encode()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the object in one line; raises `RateError` with its number."""
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise RateError(f"{self._path}, line {number}: not JSON ({error}); {_AWAY}") from error
        if not isinstance(entry, dict):
            raise RateError(f"{self._path}, line {number}: no JSON object; {_AWAY}")
        return entry

    def _check(self, header: Mapping[str, object], wanted: Mapping[str, object]) -> None:
        """Refuse the journal of another search."""
        if header.get("kind") != _KIND or header.get("version") != _VERSION:
            raise RateError(
                f"{self._path} is no journal of a search (kind {_KIND!r}, version {_VERSION}); give another path"
            )
        old, new = header.get("settings"), wanted["settings"]
        assert isinstance(new, dict)
        old = old if isinstance(old, dict) else {}
        unlike = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
        if unlike:
            pairs = ((name, *_apart(old.get(name), new.get(name))) for name in unlike)
            changes = (f"{name} was {before} and is {now}" for name, before, now in pairs)
            said = joined(changes, separator="; ")
            raise RateError(f"{self._path} is the journal of another search: {said}; give another path")


_AWAY = "give another path, or remove that line"


def opened(path: str | os.PathLike[str] | None, fingerprint: Mapping[str, JsonValue]) -> Journal | None:
    """Return the journal, on rank 0 alone; where it cannot be used, every rank raises."""
    notes, complaint = None, ""
    if path is not None and ranks.index() == 0:
        try:
            notes = Journal(path, fingerprint)
        except (RateError, OSError) as error:
            complaint = str(error)
    complaint = ranks.shared(complaint)
    if complaint:
        raise RateError(complaint)
    return notes


def _apart(one: object, other: object) -> tuple[str, str]:
    """Return two settings in short: long ones from where they differ."""
    first, second = repr(one), repr(other)
    long = max(len(first), len(second)) > _LONG
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    begin = max(same - _BEFORE, 0) if long else 0
    return short(first[begin:]), short(second[begin:])
