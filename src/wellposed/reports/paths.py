"""Where a report is written: refused before the long work where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

from wellposed.plans.files import refusal, require_writable, write_whole


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page, whole or not at all, and return its path; raises `OptionError` where that cannot be done."""
    target = Path(path)
    require_writable(target, "a report")
    try:
        write_whole(target, text)
    except OSError as error:
        raise refusal("a report", target, error) from error
    return target
