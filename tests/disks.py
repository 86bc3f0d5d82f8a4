"""Real disks of a size of our choice, for tests as root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def _can_mount() -> bool:
    """In a namespace of its own, which is gone with the command."""
    try:
        argv = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


needs_small_disks = pytest.mark.skipif(os.geteuid() != 0 or not _can_mount(), reason="needs to mount file systems")


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A file system in memory with room for `size`, as "2m", at `path`."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True, timeout=20)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True, timeout=20)


def fill(disk: Path) -> Path:
    """Write until there is no room for one more byte. The file that takes it all."""
    path = disk / "filler"
    with path.open("ab", buffering=0) as file, suppress(OSError):
        for size in (65_536, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path


def remount_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=20)
