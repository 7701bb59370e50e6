"""All tasks of the suite."""

from __future__ import annotations

from starts import fields, large, pictures, structures, tables, text
from starts.task import Task


def tasks() -> tuple[Task, ...]:
    """Return the tasks; their names differ."""
    return (*tables.TASKS, *pictures.TASKS, *text.TASKS, *fields.TASKS, *structures.TASKS, *large.TASKS)
