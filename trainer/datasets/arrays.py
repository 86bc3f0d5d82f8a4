"""The files of a prepared data set: arrays with their SHA-256, and a meta.json with a seal. Imports no torch."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trainer.files import open_regular

BLOCK = 1 << 22  # bytes written or checked between two looks at whether to go on: some milliseconds


def open_array(path: Path) -> np.ndarray:
    open_regular(path).close()  # numpy would wait for ever at a pipe
    return np.load(path, mmap_mode="r", allow_pickle=False)


def read_meta(path: Path) -> dict[str, Any]:
    """What is noted about the arrays. Raises OSError, ValueError or KeyError."""
    with open_regular(path / "meta.json") as file:
        try:
            meta = json.loads(file.read())
        except RecursionError:
            meta = None
    if not isinstance(meta, dict) or meta.pop("seal", None) != _seal(meta):
        raise ValueError("its meta.json is damaged")
    return meta


def _seal(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def check_part(path: Path, part: str, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    if images.shape != (len(labels), 32, 32, 3) or images.dtype != np.uint8 or labels.dtype != np.int64:
        raise ValueError(f"its {part} arrays are not pictures and their labels")
    name = f"{part}_labels"
    if digest(path / f"{name}.npy", lambda: None) != meta["sha256"][name]:
        raise ValueError(f"its {name}.npy is damaged")


def digest(path: Path, tick: Callable[[], object]) -> str:
    found = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(BLOCK):
            found.update(block)
            tick()
    return found.hexdigest()


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    (folder / "meta.json").write_text(json.dumps({**meta, "seal": _seal(meta)}, indent=1), "utf-8")


def save_array(path: Path, array: np.ndarray, tick: Callable[[], object]) -> str:
    """Write as np.save does. Returns the SHA-256 of the file."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        data = array.reshape(-1).view(np.uint8).data
        for start in range(0, len(data), BLOCK):
            file.write(data[start : start + BLOCK])
            tick()
    return digest(path, tick)


def colour_statistics(images: np.ndarray, tick: Callable[[], object] = lambda: None) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel of (N, 32, 32, 3) uint8, on a scale of 0 to 1.

    Counted by pixel value: exact, and without a copy of the pictures as floats. A std is at least 1/255.
    """
    counts = np.zeros((3, 256), np.int64)
    for start in range(0, len(images), 2048):  # bincount makes int64 of what it counts
        for channel in range(3):
            counts[channel] += np.bincount(images[start : start + 2048, ..., channel].ravel(), minlength=256)
        tick()
    weights, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = weights @ values
    std = np.sqrt((weights * (values - mean[:, None]) ** 2).sum(1))
    return [round(float(m), 6) for m in mean], [round(max(1 / 255, float(s)), 6) for s in std]
