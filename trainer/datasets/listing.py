"""The picture files of a folder, .zip, .tar or .tar.gz, read in place: nothing is unpacked to the disk. No torch."""

import hashlib
import io
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from trainer.datasets.store import DataError
from trainer.files import open_regular
from trainer.pictures import MAX_BYTES, SUFFIXES

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
LEVELS = 8  # how deep a folder is searched: links may make it endless


class Entry(NamedTuple):
    """One picture file: its path below the top, its size in bytes, and what its container opens it by."""

    name: str
    size: int
    handle: Any


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVES) and os.path.isfile(path)


def wanted(name: str) -> bool:
    """A picture by its extension, outside hidden files and the folders that macOS adds to archives."""
    return name[name.rfind(".") :].lower() in SUFFIXES and not (
        name.startswith((".", "__MACOSX/")) or "/." in name or "/__MACOSX/" in name
    )


def folder_entries(top: Path, tick: Callable[[], object] = lambda: None) -> Iterator[Entry]:
    """Everything below `top` that is named like a picture and is no folder; links are followed.

    What cannot be looked at, as a link that leads nowhere, is among them with 0 bytes, to be told when it is read.
    Raises OSError for a folder that cannot be listed: its pictures would be missing without a word.
    """
    first = os.stat(top)
    pending = [(str(top), "", frozenset([(first.st_dev, first.st_ino)]))]
    while pending:
        folder, prefix, above = pending.pop()
        tick()
        with os.scandir(folder) as items:
            for item in items:
                name = f"{prefix}{item.name}"
                status = _status(item)
                if status is not None and stat.S_ISDIR(status.st_mode):
                    place = status.st_dev, status.st_ino
                    # A link to a folder that it lies in would give each picture many times.
                    if len(above) <= LEVELS and not item.name.startswith((".", "__MACOSX")) and place not in above:
                        pending.append((item.path, f"{name}/", above | {place}))
                elif wanted(name):
                    is_file = status is not None and stat.S_ISREG(status.st_mode)
                    size, written = (status.st_size, status.st_mtime_ns) if is_file and status else (0, 0)
                    yield Entry(name, size, (item.path, written))


def _status(item: os.DirEntry) -> os.stat_result | None:
    try:
        return item.stat()
    except OSError:
        return None


def identity(path: Path, entries: list[Entry] | None) -> str:
    """A name for what lies at `path` now: `<where>-<which version>`, changed when a file is added, removed or written.

    `entries` are those of a folder; an archive is known by its own size and time.
    """
    where = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]
    version = hashlib.sha256()
    if entries is None:
        status = path.stat()
        version.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    else:
        lines = sorted(f"{entry.name}\0{entry.size} {entry.handle[1]}" for entry in entries)
        version.update("\n".join(lines).encode(errors="surrogateescape"))
    return f"{where}-{version.hexdigest()[:12]}"


class _Watched(io.BufferedReader):
    """A file that calls `tick` at each read, so that a walk through a large archive can be ended."""

    def __init__(self, path: Path, tick: Callable[[], object]):
        super().__init__(open_regular(path).detach())
        self._tick = tick

    def read(self, size: int | None = -1, /) -> bytes:
        self._tick()
        return super().read(size)


@contextmanager
def archive_reader(path: Path, tick: Callable[[], object] = lambda: None) -> Iterator[Any]:
    """The open archive. Raises DataError if it is damaged or something else."""
    try:
        with (
            _Watched(path, tick) as file,
            zipfile.ZipFile(file) if path.name.lower().endswith(".zip") else tarfile.open(fileobj=file) as archive,
        ):
            yield archive
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, NotImplementedError) as error:
        raise DataError(f"{path} is damaged or not such an archive ({error}): make it again") from error


def archive_entries(archive: Any) -> list[Entry]:
    """The pictures in the order in which they lie in the archive, which is the quickest to read them in."""
    if isinstance(archive, zipfile.ZipFile):
        found = [Entry(i.filename.replace("\\", "/"), i.file_size, i) for i in archive.infolist() if not i.is_dir()]
    else:
        found = [Entry(m.name, m.size, m) for m in archive if m.isfile()]
    return [entry for entry in (_relative(e) for e in found) if wanted(entry.name)]


def _relative(entry: Entry) -> Entry:
    name = entry.name
    while name.startswith(("./", "/")):
        name = name.removeprefix("/").removeprefix("./")
    return Entry(name, entry.size, entry.handle)


def read_entry(archive: Any, entry: Entry) -> bytes:
    """The bytes of one file; more than MAX_BYTES of one that is too large to be a picture.

    Raises OSError, or DataError for a password.
    """
    if archive is None:
        with open_regular(entry.handle[0]) as file:
            return file.read(MAX_BYTES + 1)
    if entry.size > MAX_BYTES:
        return bytes(MAX_BYTES + 1)
    if isinstance(archive, zipfile.ZipFile):
        if entry.handle.flag_bits & 1:
            raise DataError(f"{archive.filename} asks for a password: make it again without one")
        with archive.open(entry.handle) as file:
            return file.read(MAX_BYTES + 1)
    with archive.extractfile(entry.handle) as file:
        return file.read()
