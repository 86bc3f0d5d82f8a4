"""Checkpoints that are whole or absent: written beside, flushed, hashed, then put in place; verified when read.

`last.pt` is replaced by each save and its predecessor becomes `previous.pt`, so there is always one that loads. A
power cut at any moment leaves files whose hash is known: the hash is on the disk before the file gets its name.
"""

import hashlib
import io
import os
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.files import open_regular, sync_folder, write_atomic

KEYS = {"model", "optimizer", "schedule", "epoch", "step", "best", "config", "classes", "normalise"}
BEGINNING = b"PK\x03\x04"  # of a torch file, which is a zip archive
MAX_HASH_FILE = 65_536  # bytes
MAX_PICKLE = 16_000_000  # bytes; what is not a tensor: ours have less than a tenth of that


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the text names the file and the reason."""


class MissingError(CheckpointError):
    """There is no file of that name."""


def hash_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_hashes(path: Path, hashes: list[str]) -> None:
    """The file beside `path`, in the format of sha256sum. Of several lines one is that of the file."""
    write_atomic(hash_path(path), "".join(f"{digest}  {path.name}\n" for digest in hashes), sync=True)


def _known_hashes(path: Path) -> list[str]:
    try:
        with open_regular(hash_path(path)) as file:
            text = file.read(MAX_HASH_FILE).decode()
    except (OSError, ValueError):
        return []
    return [line.split()[0] for line in text.splitlines() if line.strip()]


def _install(temporary: Path, path: Path, digest: str) -> None:
    """Put a finished file in place. At every moment in between the hashes beside it accept what lies there."""
    _write_hashes(path, [digest, *_known_hashes(path)])  # more than one is known after a crash in between
    os.replace(temporary, path)
    sync_folder(path.parent)
    with suppress(OSError):  # the file is in place and its hash known; the hash of its predecessor does no harm
        _write_hashes(path, [digest])


def save(path: Path, state: dict[str, Any], previous: Path | None = None) -> None:
    """Write a checkpoint; what `path` held becomes `previous`, unless it is damaged.

    Raises OSError, for example on a full disk, and then leaves a checkpoint that was there as it was.
    """
    assert set(state) == KEYS
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:  # a file object: torch's own writer hides the reason of a failure
            try:
                torch.save(state, file)
            except RuntimeError as error:  # and after some, as a file that may not grow, it hides it all the same
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            file.flush()
            os.fsync(file.fileno())
        held = _hold(path, previous) if previous is not None else None
        _install(temporary, path, _sha256(temporary))
        if previous is not None and held is not None:
            with suppress(OSError):  # then `previous` stays what it was, and this checkpoint is saved all the same
                _install(_temporary(previous), previous, held)
    finally:
        _remove(temporary)
        if previous is not None:
            _remove(_temporary(previous))


def promote(source: Path, target: Path) -> None:
    """Make `target` the checkpoint that `source` is now; a later save of `source` does not change it."""
    temporary = _temporary(target)
    try:
        _link(source, temporary)
        _install(temporary, target, _known_hashes(source)[0])
    finally:
        _remove(temporary)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _remove(temporary: Path) -> None:
    with suppress(OSError):  # on a disk that takes no writes any more it stays, for the next start to remove
        temporary.unlink(missing_ok=True)


def _hold(path: Path, previous: Path) -> str | None:
    """Keep what `path` holds under a second name; its hash, or None for a damaged one, which must not take a place."""
    with suppress(OSError):
        digest = _sha256(path)  # 0.05 s for 100 MB
        if digest in _known_hashes(path):
            _link(path, _temporary(previous))
            return digest
    return None


def _link(source: Path, temporary: Path) -> None:
    _remove(temporary)
    try:
        os.link(source, temporary)  # shares the bytes; save() replaces names and never writes into a file
    except OSError:
        shutil.copyfile(source, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def load(path: Path) -> dict[str, Any]:
    """Read and verify a checkpoint onto the CPU; runs no code of the file. Raises CheckpointError."""
    return parse(read(path), path)


def read(path: Path) -> bytes:
    """The bytes of a checkpoint whose hash was checked, also while a run puts newer ones in its place.

    Raises CheckpointError.
    """
    if not os.path.lexists(path):
        raise MissingError(f"there is no checkpoint {path}")
    try:
        while True:
            with open_regular(path) as file:
                data = _read_whole(file, path)
                known = _known_hashes(path)
                if hashlib.sha256(data).hexdigest() in known:
                    return data
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    continue  # it was replaced meanwhile
            if not known:
                raise CheckpointError(f"{path} has no SHA-256 beside it ({hash_path(path).name}), so it is not trusted")
            raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one noted beside it")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise CheckpointError(f"{path} cannot be read: it does not fit into memory") from None


def _read_whole(file: io.BufferedReader, path: Path) -> bytes:
    if file.read(len(BEGINNING)) != BEGINNING:  # told before a file of any size is read
        raise CheckpointError(f"{path} is damaged or not a checkpoint of this program: it does not begin like one")
    file.seek(0)
    return file.read()


def parse(data: bytes, path: Path) -> dict[str, Any]:
    """The state in the bytes of a checkpoint, on the CPU; `path` is for the words. Raises CheckpointError."""
    try:
        _check_container(data)
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        _check_state(state)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is not a checkpoint of this program ({error})") from None
    except Exception as error:  # unpickling a wrong file raises nearly anything
        raise CheckpointError(f"{path} is not a checkpoint of this program ({type(error).__name__})") from None
    return state


def _check_container(data: bytes) -> None:
    """A torch file keeps its tensors as they are: nothing in it can unfold to more than the file has."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > len(data):
        raise CheckpointError("it unfolds to more than it holds")
    if any(entry.file_size > MAX_PICKLE for entry in entries if entry.filename.endswith(".pkl")):
        raise CheckpointError("its parts are too large")


def _check_state(state: Any) -> None:
    """The shape of what `save` writes, so that those who use it meet no surprises. Raises CheckpointError."""
    if not isinstance(state, dict) or not set(state) >= KEYS:
        raise CheckpointError("parts are missing")
    for key in ("model", "optimizer", "schedule", "best", "config", "normalise"):
        if not isinstance(state[key], dict):
            raise CheckpointError(f"its {key} is none")
    for key in ("epoch", "step"):
        if type(state[key]) is not int or not 0 <= state[key] < 2**53:
            raise CheckpointError(f"its {key} is none")
    classes = state["classes"]
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise CheckpointError("its classes are none")
    if not all(isinstance(value, torch.Tensor) for value in state["model"].values()):
        raise CheckpointError("its model is none")
    for tensor in _tensors(state):
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise CheckpointError("a tensor is of another kind")
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise CheckpointError("a tensor claims more than the file holds")


def _tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dictionaries, however deep; what is met twice is looked at once."""
    found, pending, seen = [], [value], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set):
            pending += item
    return found
