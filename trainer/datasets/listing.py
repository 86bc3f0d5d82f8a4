"""The picture files of a folder, .zip, .tar or .tar.gz, read in place: nothing is unpacked to the disk. No torch."""

import hashlib
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from trainer.datasets.store import DataError
from trainer.pictures import MAX_BYTES, SUFFIXES

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
LEVELS = 8  # how deep a folder is searched: links may make it endless


class Entry(NamedTuple):
    """One picture file: its path below the top, its size in bytes, and what its container opens it by."""

    name: str
    size: int
    handle: Any


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVES) and path.is_file()


def wanted(name: str) -> bool:
    """A picture by its extension, outside hidden files and the folders that macOS adds to archives."""
    return name[name.rfind(".") :].lower() in SUFFIXES and not (
        name.startswith((".", "__MACOSX/")) or "/." in name or "/__MACOSX/" in name
    )


def folder_entries(top: Path) -> Iterator[Entry]:
    """All pictures below `top`; links are followed."""
    pending = [(str(top), "", 0)]
    while pending:
        folder, prefix, level = pending.pop()
        with os.scandir(folder) as items:
            for item in items:
                name = f"{prefix}{item.name}"
                if item.is_file():
                    if wanted(name):
                        status = item.stat()
                        yield Entry(name, status.st_size, (item.path, status.st_mtime_ns))
                elif level < LEVELS and not item.name.startswith((".", "__MACOSX")) and item.is_dir():
                    pending.append((item.path, f"{name}/", level + 1))


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


@contextmanager
def archive_reader(path: Path) -> Iterator[Any]:
    """The open archive. Raises DataError if it is damaged or something else."""
    try:
        with zipfile.ZipFile(path) if path.name.lower().endswith(".zip") else tarfile.open(path) as archive:
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
    """The bytes of one file; b"" if it is too large to be a picture. Raises OSError, or DataError for a password."""
    if entry.size > MAX_BYTES:
        return b""
    if archive is None:
        with open(entry.handle[0], "rb") as file:
            return file.read(MAX_BYTES + 1)
    if isinstance(archive, zipfile.ZipFile):
        if entry.handle.flag_bits & 1:
            raise DataError(f"{archive.filename} asks for a password: make it again without one")
        with archive.open(entry.handle) as file:
            return file.read(MAX_BYTES + 1)
    with archive.extractfile(entry.handle) as file:
        return file.read()
