"""Where a report is written: refused before the long work where it cannot be."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from wellposed.errors import OptionError
from wellposed.plans.files import write_whole


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise `OptionError` unless a file can be written at ``path``; nothing is left there."""
    target = Path(path)
    if target.is_dir():
        raise OptionError(f"cannot write a report to {str(target)!r}: it is a folder; name a file in it")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise _refusal(target, error) from error


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page, whole or not at all, and return its path; raises `OptionError` where that cannot be done."""
    target = Path(path)
    require_writable(target)
    try:
        write_whole(target, text)
    except OSError as error:
        raise _refusal(target, error) from error
    return target


def _refusal(target: Path, error: OSError) -> OptionError:
    return OptionError(
        f"cannot write a report to {str(target)!r}: {error.strerror or error}; name a file in a folder that is there "
        "and can be written"
    )
