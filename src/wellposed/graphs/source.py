"""The user's statement that made an operator call."""

from __future__ import annotations

import os
import sys
from types import FrameType, TracebackType

import torch

_SKIPPED = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep for path in (str(torch.__file__), os.path.dirname(__file__))
)
_TRACE = os.path.join(os.path.dirname(__file__), "trace.py")
"""The file that calls the model: the frames of its callers are no part of the model."""
_FILES: dict[str, str | None] = {}


def _user_file(filename: str) -> str | None:
    """Return the last three parts of a file with code, or None for code of torch or wellposed."""
    if filename.startswith(_SKIPPED) or filename.startswith("<frozen") or filename.endswith("contextlib.py"):
        short = None
    else:
        short = "/".join(filename.replace(os.sep, "/").split("/")[-3:])
    _FILES[filename] = short
    return short


def user_line(depth: int = 1) -> str:
    """Return ``file:line`` of the model's innermost frame outside torch and wellposed; ``""`` where there is none, as
    in a model that is made of torch's modules alone.
    """
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == _TRACE:
            return ""
        short = _FILES[file] if file in _FILES else _user_file(file)
        if short is not None:
            return f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def error_line(traceback: TracebackType | None) -> str:
    """Return ``file:line`` of the innermost frame of a traceback outside torch and wellposed."""
    innermost = ""
    while traceback is not None:
        short = _user_file(traceback.tb_frame.f_code.co_filename)
        if short is not None:
            innermost = f"{short}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return innermost
