"""Files that are either the old one or the whole new one, whatever happens while they are written; and are read to an
end.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from wellposed.errors import OptionError, visible

LARGEST = 2**28
"""Bytes of the largest file that is read: a device has no end. Chosen: hundreds of times the plan of a large model."""


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: there is none, it cannot be read, or it is larger than `LARGEST`.
    """
    _require_name(path)
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(errno.EFBIG, f"larger than {LARGEST >> 20} MiB, or without an end", os.fspath(path))
    return content


def _require_name(path: str | os.PathLike[str]) -> None:
    """Raise `OSError` where a path holds a character that no file's name has."""
    name = os.fspath(path)
    if "\0" in name:
        raise OSError(errno.EINVAL, "the name of a file holds no NUL", visible(name))


def write_whole(path: str | os.PathLike[str], content: str | Callable[[Path], object]) -> None:
    """Write a file by way of a temporary one beside it, which then takes its place and its mode.

    What is no file (a device, a pipe) is written to as it is.

    Args:
        path: of the file.
        content: its text, or a function that writes to the path that it is given.

    Raises:
        OSError: the file cannot be written, as its ``filename`` says; what was there is still there.
    """
    _require_name(path)
    fill = _filling(content) if isinstance(content, str) else content
    target = Path(os.path.realpath(path))  # a symbolic link stays one
    mode = _mode(target)
    if mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        fill(target)
        return
    # A name of its own: one made of the file's could be too long.
    temporary = target.with_name(f".{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode if mode is None else mode
        fill(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError) and problem.filename:  # nobody knows the other one
            problem.filename, problem.filename2 = os.fspath(path), None
        raise


def _filling(text: str) -> Callable[[Path], object]:
    """Return a function that writes a text to a path."""
    return lambda path: path.write_text(text, encoding="utf-8")


def _mode(path: Path) -> int | None:
    """Return kind and permissions of what is at ``path``; None where nothing is."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None


def require_writable(path: str | os.PathLike[str], what: str) -> None:
    """Raise `OptionError` unless ``what``, in words, can be written to a file at ``path``; nothing is left there."""
    target = Path(path)
    try:
        _require_name(path)
    except OSError as error:
        raise refusal(what, target, error) from error
    if target.is_dir():
        raise OptionError(f"cannot write {what} to {str(target)!r}: it is a folder; name a file in it")
    if target.exists() and not target.is_file():  # a device or a pipe
        return
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise refusal(what, target, error) from error


def refusal(what: str, path: Path, error: OSError) -> OptionError:
    """Return what is raised where ``what`` cannot be written to ``path``."""
    return OptionError(
        f"cannot write {what} to {str(path)!r}: {error.strerror or error}; name a file in a folder that is there "
        "and can be written"
    )
