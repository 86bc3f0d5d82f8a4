"""Checkpoints that are whole or absent: written beside, flushed, hashed, then put in place; verified when read."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import torch

from trainer.runs import write_atomic

KEYS = {"model", "optimizer", "schedule", "epoch", "step", "best", "config", "classes", "normalise"}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the text names the file and the reason."""


def hash_path(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open_verified(path: Path) -> BinaryIO:
    """The very file whose hash was checked, also while a run puts newer ones in its place."""
    while True:
        file = path.open("rb")
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        known = _known_hashes(path)
        if digest in known:
            file.seek(0)
            return file
        was_replaced = not os.path.samestat(os.fstat(file.fileno()), path.stat())
        file.close()
        if was_replaced:
            continue
        if not known:
            raise CheckpointError(f"{path} has no SHA-256 beside it ({hash_path(path).name}), so it is not trusted")
        raise CheckpointError(f"{path} is damaged: its SHA-256 is not the one noted beside it")


def _write_hashes(path: Path, hashes: list[str]) -> None:
    """The file beside `path`, in the format of sha256sum. Of several lines one is that of the file."""
    write_atomic(hash_path(path), "".join(f"{digest}  {path.name}\n" for digest in hashes))


def _known_hashes(path: Path) -> list[str]:
    try:
        return [line.split()[0] for line in hash_path(path).read_text().splitlines() if line.strip()]
    except (OSError, ValueError):
        return []


def _install(temporary: Path, path: Path, digest: str) -> None:
    """Put a finished file in place. At every moment in between the hashes beside it accept what lies there."""
    _write_hashes(path, [digest, *_known_hashes(path)])  # more than one is known after a crash in between
    os.replace(temporary, path)
    _write_hashes(path, [digest])


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint. Raises OSError, for example on a full disk, and then leaves the previous one as it was."""
    assert set(state) == KEYS
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:  # a file object: torch's own writer hides the reason of a failure
            try:
                torch.save(state, file)
            except RuntimeError as error:  # and after some, as a file that may not grow, it hides it all the same
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            file.flush()
            os.fsync(file.fileno())
        _install(temporary, path, _sha256(temporary))
    finally:
        temporary.unlink(missing_ok=True)


def promote(source: Path, target: Path) -> None:
    """Make `target` the checkpoint that `source` is now; a later save of `source` does not change it."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        try:
            os.link(source, temporary)  # shares the bytes; save() replaces names and never writes into a file
        except OSError:
            shutil.copyfile(source, temporary)
        _install(temporary, target, _known_hashes(source)[0])
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """Read and verify a checkpoint onto the CPU; runs no code of the file. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}")
    try:
        with _open_verified(path) as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # unpickling a wrong file raises nearly anything
        raise CheckpointError(f"{path} is not a checkpoint of this program ({type(error).__name__})") from None
    if not isinstance(state, dict) or not set(state) >= KEYS:
        raise CheckpointError(f"{path} is not a checkpoint of this program (parts are missing)")
    return state
