"""Files that anybody may have put there, and files that must survive a power cut. Imports no torch."""

import errno
import json
import os
import re
import shutil
import stat
import time
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import psutil

RESERVE = ".reserve"
CLOCK_SLACK = 2.0  # seconds between the clocks of a file system and of the kernel
STALE_SECONDS = 60.0  # a run's directory is begun and finished within milliseconds
# .<name of a file of ours>.<pid of the process that writes it>
_TEMPORARY = re.compile(r"\.(?:process|.+\.(?:jsonl?|log|pt|sha256|safetensors))\.(\d+)")


def open_regular(path: Path | str) -> BufferedReader:
    """Open a file for reading. Raises OSError at once for what is no file: a pipe would block, a device never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files that they lead to. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot, and need not, do this
            raise
    finally:
        os.close(descriptor)


def write_atomic(path: Path, text: str, sync: bool = False) -> None:
    """Replace `path` as a whole: a reader sees the old text or the new, never a part; with `sync` a power cut too."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def file_size(path: Path) -> int:
    """In bytes; 0 if there is no such file, or none that may be seen."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def open_to_append(path: Path) -> int:
    """The descriptor of a file, made if there is none. Raises OSError, also for a pipe: writing to it could block."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is a pipe", str(path))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if it is missing, torn or something else."""
    try:
        with open_regular(path) as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left in a run directory in which none is at work: the room that they kept, and
    temporary files `.<name>.<pid>`; those of living ones, which may be readers, stay."""
    with suppress(OSError):
        (folder / RESERVE).unlink(missing_ok=True)
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            match = _TEMPORARY.fullmatch(entry.name)
            if match is None:
                continue
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False) and not _is_at_work(int(match[1]), entry.stat().st_mtime):
                    os.unlink(entry.path)


def _is_at_work(pid: int, written: float) -> bool:
    """Whether the process that wrote at `written` still lives; a later one may have its number."""
    try:
        return psutil.Process(pid).create_time() <= written + CLOCK_SLACK
    except (psutil.NoSuchProcess, OverflowError, ValueError):
        return False
    except psutil.Error:
        return True


def unlink_from_copies(path: Path) -> None:
    """Before appending to a file that has other names, as in a backup of hard links: make it one of its own."""
    with suppress(OSError):
        if path.stat().st_nlink > 1:
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                shutil.copy2(path, temporary)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove what can be removed of a folder with all that is in it. Of one that is a link what it leads to as well,
    unless that is its neighbour, which has a name of its own."""
    if folder.is_symlink():
        target = Path(os.path.realpath(folder))
        if target.parent != Path(os.path.realpath(folder.parent)):
            shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):
            folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale_folders(runs_dir: Path, run_id: re.Pattern[str]) -> None:
    """Remove what a killed process left beside the runs: `.<id>`, begun and not finished, and `.deleted-<id>`."""
    with suppress(OSError):
        for entry in list(os.scandir(runs_dir)):
            deleted = entry.name.startswith(".deleted-")
            name = entry.name.removeprefix(".deleted-" if deleted else ".")
            if name != entry.name and run_id.fullmatch(name):
                with suppress(OSError):
                    if deleted or _is_unfinished(entry):
                        remove_folder(Path(entry.path))


def _is_unfinished(entry: os.DirEntry) -> bool:
    """Not so for a run that somebody has hidden by a dot before its name. Raises OSError."""
    if not entry.is_dir(follow_symlinks=False):
        return False
    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
    return age > STALE_SECONDS and set(os.listdir(entry.path)) <= {"config.json", "launch.json"}
