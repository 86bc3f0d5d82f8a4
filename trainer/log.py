"""`train.log` holds all output of a run's processes, also when a shell started it. Imports no torch."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STDOUT, STDERR = 1, 2


def say(text: str, descriptor: int = STDOUT) -> None:
    """Print a line at once. A closed terminal or a full disk under the log must not end the run, as print() would."""
    with suppress(OSError):
        os.write(descriptor, f"{text}\n".encode(errors="replace"))


@contextmanager
def tee_output(path: Path) -> Iterator[None]:
    """Copy what this process and its children print to `path`, unless it goes there already."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        if os.path.samestat(os.fstat(log), os.fstat(1)):
            yield
            return
        with _copied(log):
            yield
    finally:
        os.close(log)


@contextmanager
def _copied(log: int) -> Iterator[None]:
    """Descriptors 1 and 2 become a pipe; a thread writes what comes out to the old 1 and to the log."""
    saved = os.dup(1), os.dup(2)
    reader, writer = os.pipe()
    sys.stdout.flush()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    os.close(writer)
    thread = threading.Thread(target=_pump, args=(reader, log, saved[0]), name="log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        thread.join(5)  # ends with the last writer: when all children are gone too
        for descriptor in (*saved, reader):
            os.close(descriptor)


def _pump(reader: int, *targets: int) -> None:
    while data := os.read(reader, 65536):
        for target in targets:
            try:
                os.write(target, data)
            except OSError:  # a closed terminal or a full disk must not end the run
                continue
