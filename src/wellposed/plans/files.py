"""Files that are either the old one or the whole new one, whatever happens while they are written."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` by way of a temporary file beside it, which then takes its place.

    Raises:
        OSError: the file cannot be written, as its ``filename`` says; what was there is still there.
    """
    target = Path(path).resolve()  # a symbolic link stays one
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.filename:  # nobody knows the other one
            problem.filename, problem.filename2 = os.fspath(path), None
        raise
