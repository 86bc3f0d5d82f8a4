"""What run directories say about processes: who waits, who was started, who trains. Imports no torch."""

import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.files import open_regular, read_json
from trainer.processes import identity


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < 253_402_300_800  # type: ignore[operator]  # up to the year 9999


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_texts(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


# What a reader may take for granted about a key that is there; any other value was not written by us.
_TYPES: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("queued", "started", "heartbeat"), _is_time),
    **dict.fromkeys(("pid", "rank", "step", "events_offset"), _is_count),
    "start": lambda value: type(value) is str,
    "waiting": lambda value: type(value) is bool,
    "devices": _is_texts,
    **dict.fromkeys(("done", "error"), lambda value: type(value) is dict),
}


def _read(path: Path) -> dict[str, Any] | None:
    record = read_json(path)
    return record and {key: value for key, value in record.items() if key not in _TYPES or _TYPES[key](value)}


def read_rank(path: Path) -> dict[str, Any] | None:
    """What a rank wrote about itself (trainer.ranks), with `rank`, `step` and `heartbeat`; None if it is no such."""
    record = _read(path)
    return {"step": 0, "heartbeat": 0.0, **record} if record and "rank" in record else None


def read_record(path: Path) -> dict[str, Any] | None:
    """A record about a process; one that was copied here with its directory is about nobody."""
    record = _read(path)
    if record is not None and record.get("directory", key := directory_key(path.parent)) != key:
        return {**record, "pid": None, "waiting": None}
    return record


def directory_key(path: Path) -> list[int] | None:
    """What stays when a directory is renamed and differs in a copy of it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_dev, found.st_ino]


LOCK = "lock"  # a file that nobody reads: on SMB a locked one cannot be
_held: dict[str, int] = {}  # by run directory: the lock, open for as long as this process lives


def hold(run: Path) -> bool:
    """Lock the run directory of this process for as long as it lives, so that those who cannot see the process know
    as well: from another container, or as another user where /proc is hidden. Without locks they go by the pid.

    False if another process has it.
    """
    with suppress(OSError):
        path = run / LOCK
        if (mine := _held.get(str(run))) is not None:
            if os.path.exists(path) and os.path.samestat(os.fstat(mine), path.stat()):
                return True
            os.close(_held.pop(str(run)))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return not isinstance(error, BlockingIOError)
        _held[str(run)] = descriptor
    return True


def _let_go() -> None:
    """In a forked child: it is not the one at work."""
    while _held:
        os.close(_held.popitem()[1])


os.register_at_fork(after_in_child=_let_go)


def is_held(run: Path) -> bool:
    """Whether a process that trains the run, or waits to train it, lives, wherever it may be."""
    try:
        with open_regular(run / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def here(path: Path) -> dict[str, Any]:
    """This process, at work in the run directory `path`."""
    known = identity(os.getpid())
    assert known is not None
    return {"pid": known[0], "start": known[1], "directory": directory_key(path)}


def queue_record(path: Path, waits_here: bool) -> dict[str, Any]:
    return {"queued": time.time(), **({**here(path), "waiting": True} if waits_here else {})}


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("torch", "torchvision", "numpy", "pillow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
