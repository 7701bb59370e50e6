"""The other side of `wellposed.frontends.keras.processes`, which runs this as a module."""

from __future__ import annotations

import importlib
import os
import pickle
import select
import shutil
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from itertools import zip_longest
from typing import IO, Any, NoReturn

import keras

from wellposed import tables
from wellposed.errors import TraceError, UnsupportedError, WellposedError, WorkerError
from wellposed.frontends.keras.module import KerasModule
from wellposed.frontends.keras.processes import receive, send
from wellposed.frontends.keras.sending import Job, Sent, summary, with_models
from wellposed.frontends.keras.variables import layers_of, long_paths

_FORKS = sys.platform == "linux"  # elsewhere, libraries that torch uses do not work in a forked process
_GLANCE = 2.0
"""Seconds after which it is asked whether the process that asks is still there."""
_CHUNK = 1 << 20
_terminal: IO[str] | None = None
_ADVICE = (
    "its get_config must say all that it is made from, and what is not built by its configuration needs an example "
    "after the model"
)


def rebuilt(sent: Sent, args: tuple[Any, ...]) -> Any:
    """Return a model as it was sent: its layers, their paths and the values of its variables.

    Args:
        sent: the model.
        args: what it is called with, where it does not know its own shapes.

    Raises:
        UnsupportedError: it cannot be built from its configuration, or comes out otherwise; the message says where.
    """
    for name, value in sent.settings.items():
        getattr(keras.config, f"set_{name}")(value)
    keras.config.set_dtype_policy(keras.saving.deserialize_keras_object(sent.policy))
    try:
        with warnings.catch_warnings(), long_paths(_calls(sent.config)):
            warnings.simplefilter("ignore")  # the model is as it was made, and was warned of there
            model = keras.saving.deserialize_keras_object(sent.config, custom_objects=dict(sent.custom_objects))
            if args and len(model.variables) < len(sent.variables):
                model(*args)  # which builds what no configuration knows the shapes of
    except Exception as error:
        raise UnsupportedError(
            f"a worker cannot build {sent.name} again on Keras' torch backend ({summary(error)}); what a class is made "
            "from must be in its get_config, and its code must call keras.ops, not another framework"
        ) from error
    _name_layers(model, sent)
    _fill(model, sent)
    return model


def _calls(config: Any) -> int:
    """Return how often layers are called in the functional models of a configuration."""
    parts = config.values() if isinstance(config, dict) else config if isinstance(config, (list, tuple)) else ()
    own = len(config.get("inbound_nodes") or ()) if isinstance(config, dict) else 0
    return own + sum(map(_calls, parts))


def _name_layers(model: Any, sent: Sent) -> None:
    """Call the layers what they are called where the model comes from, and freeze those that are frozen there."""
    layers = layers_of(model)
    kinds, wanted = [type(layer).__name__ for layer in layers], [kind for _, _, kind, _ in sent.layers]
    if kinds != wanted:
        built, meant = _first_difference(kinds, wanted)
        raise UnsupportedError(
            f"a worker builds {sent.name} with other layers than it has: {built} in the place of {meant} ({len(kinds)} "
            f"and {len(wanted)} layers); {_ADVICE}"
        )
    for layer, (path, name, _, trained) in zip(layers, sent.layers, strict=True):
        layer._path, layer.name = path, name
        layer.trainable = trained  # also of all inside it, which come after it


def _first_difference(own: list[Any], theirs: list[Any]) -> tuple[Any, Any]:
    """Return the first elements of two lists that differ; "none" where a list has ended."""
    return next(pair for pair in zip_longest(own, theirs, fillvalue="none") if pair[0] != pair[1])


def _fill(model: Any, sent: Sent) -> None:
    """Match variables by order and shape, and give them the paths and values that were sent."""
    own = [list(variable.shape) for variable in model.variables]
    theirs = [list(values.shape) for _, values, _ in sent.variables]
    if own != theirs:
        built, meant = _first_difference(own, theirs)
        path = next(
            (path for (path, _, _), one, other in zip(sent.variables, theirs, own, strict=False) if one != other),
            "the end",
        )
        raise UnsupportedError(
            f"a worker builds {sent.name} with other variables than it has: at {path} one of shape {built} in the "
            f"place of {meant} ({len(own)} and {len(theirs)} variables); {_ADVICE}"
        )
    for variable, (path, values, trained) in zip(model.variables, sent.variables, strict=True):
        variable._path = path
        if trained is not None:
            variable.trainable = trained
        variable.assign(values.astype("float32") if values.dtype.name == "bfloat16" else values)


def answer(job: Job) -> tuple[str, Any]:
    """Return ``returned`` and what the function of a job returned, or ``raised`` and its error."""
    try:
        if keras.config.backend() != "torch":
            raise UnsupportedError(
                f"Keras runs on {keras.config.backend()} in a worker that was asked for torch: something sets another "
                "backend at the start of Python (sitecustomize, a .pth file)"
            )
        model = rebuilt(job.model, job.args)
        settings = with_models(job.settings, Sent, lambda sent: KerasModule(rebuilt(sent, job.args)))
        return "returned", job.function(KerasModule(model), *job.args, **settings)
    except WellposedError as error:
        if isinstance(error, TraceError):
            error.partial = None
        return "raised", error
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return "raised", WorkerError(f"the worker that has Keras on torch failed: {told}\n{traceback.format_exc()}")


def answered(question: bytes) -> bytes:
    """Return the answer to a pickled job, pickled."""
    try:
        directory, paths, watched, content = pickle.loads(question)
        tables.show_on(_terminal if watched else None)
        os.chdir(directory)
        sys.path[:] = paths
        job = pickle.loads(content)
    except Exception as error:
        result: tuple[str, Any] = (
            "raised",
            UnsupportedError(
                f"a worker cannot import what it was sent ({summary(error)}): classes, functions and options must "
                "come from modules on sys.path, or be defined in the script or notebook itself"
            ),
        )
    else:
        result = answer(job)
    try:
        return pickle.dumps(result)
    except Exception as error:
        told = (
            f"the worker that has Keras on torch cannot send its answer ({type(result[1]).__name__}; {summary(error)})"
        )
        return pickle.dumps(("raised", WorkerError(told)))


def forked(question: bytes, asking: IO[bytes], parent: int) -> tuple[int, bytes] | None:
    """Return the exit code of a copy of this process that answers a job, and its answer; b"" where it died.

    What a job imports, registers and sets is gone with the copy. None is returned where nobody waits any more.

    Args:
        question: the pickled job.
        asking: where jobs come from, on which nothing comes while one is being answered.
        parent: the process that asks.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _answer_and_exit(question, writing)
    os.close(writing)
    parts: list[bytes] = []
    with open(reading, "rb", buffering=0) as coming:
        while True:
            ready, _, _ = select.select([coming, asking], [], [], _GLANCE)
            if asking in ready or os.getppid() != parent:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
            if coming in ready:
                part = coming.read(_CHUNK)
                if not part:
                    break
                parts.append(part)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, b"" if code else b"".join(parts)


def _answer_and_exit(question: bytes, writing: int) -> NoReturn:
    """Answer a job in a copy of the process, which ends without what the process itself does at its end."""
    code = 1
    try:
        with open(writing, "wb") as going:
            going.write(answered(question))
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def main(preloaded: str, directory: str, terminal: str = "") -> None:
    """Answer jobs, each in a copy of this process; where Python cannot fork safely, one, and end.

    Args:
        preloaded: a module that jobs need.
        directory: of the log, which goes where nobody asks any more.
        terminal: the number of the terminal on which progress is shown; empty for none.
    """
    global _terminal
    if terminal:
        _terminal = os.fdopen(int(terminal), "w")
    parent = os.getppid()
    asking, replying = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what layers print is no answer
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    importlib.import_module(preloaded)
    send(replying, b"ready")
    while (question := _next(asking, parent)) is not None:
        sys.stdout.flush()
        os.truncate(2, 0)
        if not _FORKS:
            send(replying, pickle.dumps((0, answered(question), False)))
            return
        reply = forked(question, asking, parent)
        if reply is None:
            break
        send(replying, pickle.dumps((*reply, True)))
    shutil.rmtree(directory, ignore_errors=True)


def _next(asking: IO[bytes], parent: int) -> bytes | None:
    """Return the next job; None where nobody asks any more."""
    while _FORKS and not select.select([asking], [], [], _GLANCE)[0]:
        if os.getppid() != parent:
            return None
    return receive(asking)


if __name__ == "__main__":
    main(*sys.argv[1:])
    if _FORKS:  # nothing that was asked ran here: there is nothing to tidy, which takes a second
        os._exit(0)
