"""What can be checked of the rows by program: arms alike, settings as stated, verdicts that follow from the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.journal import key_of
from experiments.papers import ARMS, best, judged
from experiments.registry import SCALES, Experiment, Row, experiments, find
from experiments.results import FOLDER, Result, found
from experiments.settings import FOLDER as SETTINGS
from experiments.settings import as_plain, from_plain, load_settings

PAGE = Path("docs/papers.md")


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of a row.

    Attributes:
        experiment, scale: of which result.
        check: what was asked.
        wrong: what does not hold, and where; empty where all holds.
    """

    experiment: str
    scale: str
    check: str
    wrong: str = ""


def audit(names: Sequence[str] = (), folder: Path = FOLDER, page: Path = PAGE) -> list[Finding]:
    """Return a finding for each check of the results that the page shows, and of each experiment's paper settings.

    Args:
        names: of the experiments; none for all.
        folder: where results lie.
        page: the page that tells their verdicts.
    """
    results, text = found(folder), page.read_text()
    findings = []
    for experiment in map(find, names) if names else experiments().values():
        name = experiment.name
        findings.append(Finding(name, "paper", "settings are those that the paper states", _unstated(experiment)))
        if (shown := best(results, name)) is not None:
            findings += _of_result(shown, text)
    return findings


def _of_result(shown: Result, text: str) -> list[Finding]:
    """Return the findings of one result; what rests on rows that are not sound is not asked."""
    name, scale = shown.experiment, shown.scale
    findings = [Finding(name, scale, "settings are those of its file", _changed(shown))]
    if not findings[0].wrong:  # else its rows are those of other units
        findings += [Finding(name, scale, check, ask(shown)) for check, ask in CHECKS.items()]
    if not any(finding.wrong for finding in findings):
        findings.append(Finding(name, scale, "the page tells the verdict", _untold(shown, text)))
    return findings


def _missing(result: Result) -> str:
    """Return what is amiss where rows are not one for each unit of the settings."""
    experiment = find(result.experiment)
    units = list(experiment.units(from_plain(result.settings)))
    keys = {key for unit in units for key in unit}
    rows = [key_of({key: row[key] for key in row if key in keys}) for row in result.rows]
    wanted = [key_of(unit) for unit in units]
    absent, more = [key for key in wanted if key not in rows], len(rows) - len(wanted)
    return f"{len(absent)} units have no row ({absent[0]})" if absent else f"{more} rows too many" if more else ""


def _uneven(result: Result) -> str:
    """Return which arms have other seeds, nets or values than the first, but for those that the experiment excuses."""
    experiment = find(result.experiment)
    units = list(experiment.units(from_plain(result.settings)))
    key = next((key for key in ARMS if units and key in units[0]), None)
    if key is None:
        return ""
    by_arm = _by(units, key, lambda unit: key_of({k: v for k, v in unit.items() if k not in (key, *experiment.own)}))
    arms = {arm: keys for arm, keys in by_arm.items() if arm not in experiment.partial}
    first = next(iter(arms))
    uneven = [str(arm) for arm, keys in arms.items() if keys != arms[first]]
    return f"{', '.join(uneven)}: other units than {first}" if uneven else ""


def _ungridded(result: Result) -> str:
    """Return which arms were trained at other rates than the first, where arms have a grid.

    Arms that have fewer units on purpose may lack grids that belong to units which they do not have.
    """
    partial = find(result.experiment).partial
    rows = [row for row in result.rows if isinstance(row.get("runs"), list) and "rate" in row["runs"][0]]
    key = next((key for key in ARMS if rows and key in rows[0]), None)
    if key is None:
        return ""
    grids = _by(rows, key, lambda row: str([run["rate"] for run in row["runs"]]))
    first = next((arm for arm in grids if arm not in partial), next(iter(grids)))
    uneven = [
        str(arm) for arm, grid in grids.items() if grid != grids[first] and not (arm in partial and grid < grids[first])
    ]
    return f"{', '.join(uneven)}: other rates than {first}" if uneven else ""


def _changed(result: Result) -> str:
    """Return which settings have changed since a result was made."""
    now = as_plain(load_settings(result.experiment, result.scale))
    return ", ".join(
        sorted(key for key in now.keys() | result.settings.keys() if now.get(key) != result.settings.get(key))
    )


def _outdated(result: Result) -> str:
    return "" if result.current else f"made by wellposed {result.environment['wellposed']}"


CHECKS: Mapping[str, Callable[[Result], str]] = {
    "each unit has a row": _missing,
    "arms have the same seeds, nets and values": _uneven,
    "arms have the same rates": _ungridded,
    "this version made it": _outdated,
}


def _unstated(experiment: Experiment) -> str:
    """Return which settings are not those that the paper states: at its own scale, and of what holds at all scales."""
    wrong = []
    for scale in (scale for scale in SCALES[1:] if (SETTINGS / experiment.name.lower() / f"{scale}.yaml").exists()):
        settings = as_plain(load_settings(experiment.name, scale))
        for name, value in experiment.stated.items():
            if (scale == "paper" or name in experiment.held) and (own := _at(settings, name)) != value:
                wrong.append(f"{name} is {own!r} at scale {scale}, the paper's {value!r}")
    return ", ".join(wrong)


def _at(settings: Mapping[str, Any], name: str) -> Any:
    for part in name.split("."):
        settings = settings[part]
    return settings


def _untold(result: Result, text: str) -> str:
    """Return what the page's table tells of a result where that is not what its numbers come to."""
    outcome = judged(result).agreement
    line = re.search(rf"^\| \[{result.experiment}\].*$", text, re.MULTILINE)
    cells = [cell.strip() for cell in line[0].split("|")] if line else []
    return "" if outcome in cells else f"the numbers come to {outcome!r}: python -m experiments papers"


def _by(rows: Sequence[Row | Any], key: str, of: Callable[[Any], str]) -> dict[Any, set[str]]:
    """Return what rows come to, by their arms."""
    grouped: dict[Any, set[str]] = {}
    for row in rows:
        grouped.setdefault(row[key], set()).add(of(row))
    return grouped


def failed(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the findings of what does not hold."""
    return (finding for finding in findings if finding.wrong)
