"""Many picture files become one array; those that cannot be read are named with the reason. Imports no torch."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from trainer.datasets.listing import Entry, read_entry
from trainer.datasets.store import Progress
from trainer.pictures import SIZE, PictureError, read_picture, to_input

AHEAD = 4  # pictures a core that are read before they are decoded
TICK_SECONDS = 0.2  # between two looks at whether to go on
THREAD_BYTES = 16_384  # smaller pictures decode faster in one thread than in two


def seldom(tell: Callable[[], object]) -> Callable[[], None]:
    """`tell` five times a second at most, for the places that would call it a million times."""
    last = -math.inf

    def tick() -> None:
        nonlocal last
        if time.monotonic() - last >= TICK_SECONDS:
            last = time.monotonic()
            tell()

    return tick


def decode(archive: Any, entries: list[Entry], progress: Progress) -> tuple[np.ndarray, list[tuple[str, str]]]:
    """All readable pictures in the order of `entries`, and (name, reason) of the others."""
    order = (
        sorted(range(len(entries)), key=lambda i: _offset(entries[i])) if archive is not None else range(len(entries))
    )
    images = np.empty((len(entries), SIZE, SIZE, 3), np.uint8)
    bad: dict[int, str] = {}
    done = 0
    tick = seldom(lambda: progress(f"Reading pictures: {done:,} of {len(entries):,}"))
    for index, outcome in _outcomes(archive, entries, order, tick):
        if isinstance(outcome, str):
            bad[index] = outcome
        else:
            images[index] = outcome
        done += 1
    kept = np.ones(len(entries), bool)
    kept[list(bad)] = False
    return (images[kept] if bad else images), [(entries[i].name, bad[i]) for i in sorted(bad)]


def _outcomes(
    archive: Any, entries: list[Entry], order: Iterable[int], tick: Callable[[], object]
) -> Iterator[tuple[int, np.ndarray | str]]:
    """Each picture, or why it cannot be read. Small ones are decoded here, others on all cores, few at a time."""
    total = sum(entry.size for entry in entries)
    if total <= THREAD_BYTES * len(entries):
        for index in order:
            tick()
            yield index, _decoded(_bytes(archive, entries[index]))
        return
    threads = len(os.sched_getaffinity(0))
    pool = ThreadPoolExecutor(threads)
    pending: deque[tuple[int, Future]] = deque()
    try:
        for index in order:
            tick()
            pending.append((index, pool.submit(_decoded, _bytes(archive, entries[index]))))
            if len(pending) > AHEAD * threads:
                yield _finished(*pending.popleft(), tick)
        while pending:
            yield _finished(*pending.popleft(), tick)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # who stops does not wait for what is under way


def _finished(index: int, future: Future, tick: Callable[[], object]) -> tuple[int, np.ndarray | str]:
    while True:
        tick()
        try:
            return index, future.result(TICK_SECONDS)
        except TimeoutError:
            continue


def _offset(entry: Entry) -> int:
    handle = entry.handle
    return handle.header_offset if hasattr(handle, "header_offset") else handle.offset


def _bytes(archive: Any, entry: Entry) -> bytes | str:
    """The bytes of a picture, or why they cannot be had. An archive that cannot be read is damaged as a whole."""
    if archive is not None:
        return read_entry(archive, entry)
    try:
        return read_entry(None, entry)
    except OSError as error:  # taken away since, not permitted, a link that leads nowhere, no file at all
        return f"The file cannot be read: {error.strerror or error}."


def _decoded(data: bytes | str) -> np.ndarray | str:
    if isinstance(data, str):
        return data
    try:
        return to_input(read_picture(data))
    except PictureError as error:
        return str(error)
