"""What run directories say about processes: who waits, who was started, who trains. Imports no torch."""

import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from trainer.files import read_json
from trainer.processes import identity


def read_record(path: Path) -> dict[str, Any] | None:
    """A record about a process; one that was copied here with its directory is about nobody."""
    record = read_json(path)
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
