"""A report that shows itself: as a page, a notebook cell or a terminal's text."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from wellposed.reports.judge import RATE
from wellposed.reports.record import Record
from wellposed.showing import Shown, Summary

if TYPE_CHECKING:
    from wellposed.tables import Group


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown, Record):
    """Everything that `wellposed.report` collected about a model before its first training step.

    Attributes:
        model: class name.
        judgement: the verdict in one sentence, with its level.
        structure: operations, modules, branches and merges of the traced graph; of as much as ran where the forward
            failed.
        initialisations: the model's own weights, then the plan's.
        plan: the plan; None where none could be made.
        parameters: one row for each.
        rates: the results of the learning-rate rules, side by side.
        agreement: agreement of the gradients by initialisation's label; empty without a loss.
        failure: the error that stopped the model's forward, or None.
        notes: what is missing and why, and the plan's warnings.
        provenance: how to make the report again.
        transfer: whether the best learning rate carries over the sizes of the model's family; None where it was not
            given.
    """

    def _summary(self) -> Summary:
        return Summary(f"Report of {self.model}: {self.judgement.sentence}")

    def through(self, door: str, rate: str, given: bool) -> Report:
        """Return the report with calls for a model of another framework.

        Args:
            door: what its functions are imported as, ``wk`` or ``wj``.
            rate: the call there that looks for a learning rate.
            given: whether the plan was made beforehand.
        """
        said = self.judgement
        drawn = f"{door}.apply_(plan, model)" if given else f"{door}.initialize_(model, x)"
        calls = {"plan.apply_(model)": drawn, RATE: rate}
        call = calls.get(said.call, said.call.replace("wp.", f"{door}."))
        return replace(self, judgement=replace(said, call=call))

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as one self-contained page that opens offline, and return its path.

        The file is either the old one or the whole new one.

        Raises:
            OptionError: the path cannot be written.
        """
        from wellposed.reports.html import page
        from wellposed.reports.paths import write_page

        return write_page(path, page(self))

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, for notebooks."""
        from wellposed.reports.html import frame

        return frame(self)

    def table(self) -> Group:
        """Return the report as a rich renderable for a terminal of at least 80 columns."""
        from wellposed.reports.terminal import table

        return table(self)
