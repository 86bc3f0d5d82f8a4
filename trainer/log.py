"""`train.log` holds all output of a run's processes, also when a shell started it. Imports no torch."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Full, Queue

STDOUT, STDERR = 1, 2
BACKLOG = 256  # pieces of output, of 64 KB at most, that wait for a terminal


def printable(text: str) -> str:
    """Without line breaks and terminal codes: what comes from a file or an error may hold anything."""
    return "".join(character if character.isprintable() else "?" for character in text)


def say(text: str, descriptor: int = STDOUT) -> None:
    """Print a line at once. A closed terminal or a full disk under the log must not end the run, as print() would."""
    with suppress(OSError):
        os.write(descriptor, f"{text}\n".encode(errors="replace"))


def open_streams() -> None:
    """Give this process the standard descriptors that whoever started it had closed."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))


@contextmanager
def tee_output(path: Path) -> Iterator[None]:
    """Copy what this process and its children print to `path`, unless it goes there already.

    A log that cannot be opened is told and done without.
    """
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
    except OSError as error:
        say(f"warning: cannot write {path}: {error}", STDERR)
        yield
        return
    try:
        if os.path.samestat(os.fstat(log), os.fstat(STDOUT)):
            yield
            return
        with _copied(log):
            yield
    finally:
        os.close(log)


@contextmanager
def _copied(log: int) -> Iterator[None]:
    """Descriptors 1 and 2 become a pipe. One thread writes what comes out to the log, another to the old 1, so that
    a terminal that nobody reads (Ctrl-S, a pipe that stalls) holds up nothing: what is too much for it is left out."""
    saved = os.dup(STDOUT), os.dup(STDERR)
    reader, writer = os.pipe()
    sys.stdout.flush()
    os.dup2(writer, STDOUT)
    os.dup2(writer, STDERR)
    os.close(writer)
    shown: Queue[bytes] = Queue(BACKLOG)
    pump = threading.Thread(target=_pump, args=(reader, log, shown), name="log", daemon=True)
    terminal = threading.Thread(target=_show, args=(shown, saved[0]), name="terminal", daemon=True)
    pump.start()
    terminal.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], STDOUT)
        os.dup2(saved[1], STDERR)
        pump.join(5)  # ends with the last writer: when all children are gone too
        terminal.join(2)
        if not terminal.is_alive():
            for descriptor in (*saved, reader):
                os.close(descriptor)


def _pump(reader: int, log: int, shown: Queue[bytes]) -> None:
    while data := os.read(reader, 65536):
        with suppress(OSError):  # a full disk must not end the run
            os.write(log, data)
        with suppress(Full):
            shown.put_nowait(data)
    with suppress(Full):
        shown.put(b"", timeout=1)


def _show(shown: Queue[bytes], terminal: int) -> None:
    while data := shown.get():
        with suppress(OSError):  # nor must a closed terminal
            os.write(terminal, data)
