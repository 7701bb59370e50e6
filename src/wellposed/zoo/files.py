"""A user's Python files: run with their folder on the path, as ``python file.py`` does, and found in tracebacks."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from wellposed.errors import OptionError, near_matches

_FOLDERS: list[str] = []
"""Folders that files were run from in this process, the last one last."""
_OWN = str(Path(__file__).parents[1])
_SHOWN = 5
"""Lines of a traceback that are shown at each end."""


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """Put a folder first on Python's path, and take it away again.

    Modules that another user's folder has left, and whose names are also those of files here, are forgotten first.
    """
    here = str(folder.resolve())
    if _FOLDERS[-1:] != [here]:
        _forget_namesakes(Path(here))
        _FOLDERS[:] = [*(other for other in _FOLDERS if other != here), here]
    sys.path.insert(0, here)
    try:
        yield
    finally:
        if here in sys.path:
            sys.path.remove(here)


def _forget_namesakes(folder: Path) -> None:
    """Forget modules of other folders that would stand for files of this one."""
    names = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    for name, file in files.items():
        if file and _lies_in(file, _FOLDERS) and folder not in (Path(file).parent, Path(file).parent.parent):
            for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
                del sys.modules[known]


def _lies_in(file: str, folders: list[str]) -> bool:
    """Whether a file is a user's own: in one of some folders, and neither installed there nor wellposed's."""
    if file.startswith("<"):  # frozen, or made at run time
        return False
    path = Path(file).resolve()
    if "site-packages" in path.parts or path.is_relative_to(_OWN):
        return False
    return any(path.is_relative_to(folder) for folder in folders)


def function_of(path: Path, function: str) -> Callable[..., Any]:
    """Return a function of a Python file, which is run for it; the file's folder is on the path while either runs.

    Raises:
        OptionError: there is no such file or function.
    """
    if not path.is_file():
        raise OptionError(f"there is no file {str(path)!r}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{str(path)!r} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    with on_path(path.parent):
        mine = sys.modules.setdefault(path.stem, module) is module  # a library of that name stays
        try:
            spec.loader.exec_module(module)
        except BaseException as problem:
            if mine:
                sys.modules.pop(path.stem, None)
            if isinstance(problem, SyntaxError) and problem.filename is None:  # of a file that is no text
                problem.filename = str(path)
            raise
    found = getattr(module, function, None)
    if isinstance(found, nn.Module):
        raise OptionError(f"{function} of {str(path)!r} is a model; name a function that returns it and its arguments")
    if not _is_function(found):
        functions = [key for key, value in vars(module).items() if _is_function(value)]
        near = near_matches(function, functions) if functions else "; it has none"
        raise OptionError(f"{str(path)!r} has no function {function!r}{near}")
    _require_no_arguments(path, function, found)
    return within(path.parent, found)


def _is_function(found: Any) -> TypeGuard[Callable[..., Any]]:
    """Whether something is called to make a model; a model is called to run it."""
    return callable(found) and not isinstance(found, nn.Module)


def _require_no_arguments(path: Path, function: str, found: Callable[..., Any]) -> None:
    """Raise `OptionError` for a function that cannot be called without arguments."""
    try:
        inspect.signature(found).bind()
    except ValueError:  # it does not tell
        return
    except TypeError as error:
        raise OptionError(
            f"{function} of {str(path)!r} is called without arguments, and {error}: give it a default, or name a "
            "function that calls it"
        ) from error


def within(folder: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs with a folder on the path."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with on_path(folder):
            return function(*args, **kwargs)

    return run


def lines_of(problem: BaseException) -> list[str]:
    """Return the lines of a user's own files that led to an exception, the outermost first, in words: ``net.py:3 in
    build: return 1 / 0``; empty where none of them did. Of very many, the first and the last are returned.
    """
    lines = [
        f"{_shown(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(problem.__traceback__)
        if _lies_in(frame.filename, _FOLDERS)
    ]
    if isinstance(problem, SyntaxError) and problem.filename and _lies_in(problem.filename, _FOLDERS):
        text = (problem.text or linecache.getline(problem.filename, problem.lineno or 0)).strip()
        lines.append(f"{_shown(problem.filename)}:{problem.lineno}: {text}" if text else _shown(problem.filename))
    if len(lines) > 2 * _SHOWN:
        lines[_SHOWN:-_SHOWN] = [f"… {len(lines) - 2 * _SHOWN:,} more"]
    return lines


def _shown(file: str) -> str:
    """Return a path from where the user is, if it is below."""
    path = Path(file).resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
