"""One process at a time. The kernel frees the lock of a process that dies. Imports no torch."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

POLL = 0.2  # seconds


@contextmanager
def locked(path: Path, waiting: Callable[[], object]) -> Iterator[BinaryIO]:
    """Hold the lock file `path`, which is made, and is gone afterwards; gives the open file.

    `waiting` is called five times a second while another process holds it; what it raises ends the wait. Raises
    OSError if the file cannot be made.
    """
    while True:
        with path.open("ab") as file:
            while not _take(file):
                waiting()
                time.sleep(POLL)
            if not _is_at(path, file):  # its holder removed it: others would lock the one they find there
                continue
            try:
                yield file
            finally:
                with suppress(OSError):
                    if _is_at(path, file):  # else it was renamed, and what lies there now is not ours
                        path.unlink()
            return


class TakenError(Exception):
    """Another process holds the lock."""


def refuse() -> None:
    """For `waiting`: do not wait."""
    raise TakenError


def _take(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
