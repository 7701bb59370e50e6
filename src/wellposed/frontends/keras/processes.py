"""The process that has Keras on torch: it is started by the first call that needs it, and answers the following ones.

It reads jobs from its input and writes answers to its output. What it prints goes to a file, whose last lines are shown
where it dies. It ends with this process, however that ends, since its input is closed then.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from wellposed.errors import WorkerError
from wellposed.tables import waiting

_LENGTH = struct.Struct(">Q")
_LAST_LINES = 15
_PATIENCE = 5.0
"""Seconds that a process is given to end by itself once nobody asks it any more."""


def send(stream: IO[bytes], content: bytes) -> None:
    """Write bytes, after their number."""
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Return the next bytes that were sent; None where the other side has ended."""
    head = _read(stream, _LENGTH.size)
    return None if head is None else _read(stream, *_LENGTH.unpack(head))


def _read(stream: IO[bytes], length: int) -> bytes | None:
    """Return as many bytes as are asked for, which a pipe gives in parts; None where it ends before."""
    parts: list[bytes] = []
    while length:
        part = stream.read(length)
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


class Process:
    """A process that has Keras on torch, as it is seen from the one that asks it."""

    def __init__(self, preloaded: str) -> None:
        """Start it. It imports a module before it is asked anything."""
        self.owner = os.getpid()
        self._begun = False
        self._directory = TemporaryDirectory(prefix="wellposed-", ignore_cleanup_errors=True)
        self._log = Path(self._directory.name, "log")
        environment = os.environ | {
            "KERAS_BACKEND": "torch",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # or it could not use a GPU after it has looked for one and forked
            "PYTHONPATH": os.pathsep.join(searched()),
        }
        command = [sys.executable, "-P", "-m", "wellposed.frontends.keras.worker", preloaded, self._directory.name]
        shown = _terminal() if os.name == "posix" else None
        self._terminal = None if shown is None else os.dup(shown)  # standard error itself is the log's there
        with self._log.open("ab") as lines:
            self._process = subprocess.Popen(
                [*command, *([] if self._terminal is None else [str(self._terminal)])],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=lines, env=environment,
                pass_fds=() if self._terminal is None else (self._terminal,),
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether this process, and no other that was forked from it, may ask."""
        return self.owner == os.getpid() and self._process.poll() is None

    def asked(self, job: bytes, time_limit: float) -> tuple[str, Any]:
        """Return whether a job ``returned`` or ``raised``, and what; the process ends where there is no answer.

        Raises:
            WorkerError: it died, or took longer than the limit.
        """
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._kill()

        timer = threading.Timer(time_limit, stop)
        timer.daemon = True
        timer.start()
        try:
            code, answer, stays = self._exchanged(job)
        except BaseException:
            self.end(patience=0.0)
            raise
        finally:
            timer.cancel()
        if not answer or not stays:
            last = self._last_lines()
            if not stays:
                self.end()
            if not answer:
                what = f"ended with exit code {code} before it had an answer"
                if late.is_set():
                    what = f"had no answer within time_limit={time_limit:g} seconds, and was stopped"
                raise WorkerError(
                    f"the worker that has Keras on torch {what}; the model is as it was. Its last lines:\n"
                    + "\n".join(last or ["-"])
                )
        found: tuple[str, Any] = pickle.loads(answer)
        return found

    def _last_lines(self) -> list[str]:
        """Return what the process printed last; nothing where somebody has cleared the folder of temporary files."""
        try:
            return self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        except OSError:
            return []

    def _exchanged(self, job: bytes) -> tuple[int, bytes, bool]:
        """Return the exit code of what worked on a job, its answer, and whether the process waits for another."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self._begun:
            with waiting("starting Keras on torch, which answers this call and all that follow"):
                receive(self._process.stdout)
            self._begun = True
        with suppress(OSError):  # it has died, and its output has ended too
            send(self._process.stdin, pickle.dumps((os.getcwd(), searched(), _terminal() is not None, job)))
        reply = receive(self._process.stdout)
        return (self._process.wait(), b"", False) if reply is None else pickle.loads(reply)

    def end(self, patience: float = _PATIENCE) -> None:
        """End the process, and all that it has started; one that this process was forked with is left alone."""
        if self.owner != os.getpid():
            return
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._directory.cleanup()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _kill(self) -> None:
        """Kill the worker, with its process group where the system has groups."""
        if self._terminal is not None:
            with suppress(OSError):
                os.write(self._terminal, b"\r\x1b[2K\x1b[?25h")  # a bar that is killed leaves its line, and no cursor
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()


def _terminal() -> int | None:
    """Return the number of standard error where that is a terminal, on which progress is shown."""
    try:
        return sys.stderr.fileno() if sys.stderr.isatty() else None
    except (AttributeError, OSError, ValueError):  # somebody has replaced it
        return None


def searched() -> list[str]:
    """Return the folders that modules are imported from here."""
    return [os.path.abspath(path) for path in sys.path]


_running: Process | None = None
_asking = threading.Lock()


def ask(job: bytes, time_limit: float, preloaded: str) -> tuple[str, Any]:
    """Return whether a job ``returned`` or ``raised`` in a process that has Keras on torch, and what.

    Args:
        job: the pickled one.
        time_limit: seconds that it may take.
        preloaded: the module that a process imports, where one is started.

    Raises:
        WorkerError: the process died, or took longer than the limit.
    """
    global _running
    with _asking:
        if _running is None or not _running.alive:
            close()
            _running = Process(preloaded)
        return _running.asked(job, time_limit)


@atexit.register
def close() -> None:
    """End the process, where one is running; the next call starts another."""
    global _running
    if _running is not None:
        _running.end()
        _running = None
