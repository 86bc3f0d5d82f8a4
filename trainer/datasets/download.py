"""A download that tells its progress, ends when the line is dead, and can be ended at any time. Imports no torch.

The network is another thread's business: a name look-up, a connection and a read may each hang for a minute, and a
stop has to be answered at once. The thread only ever adds to a queue; the file belongs to the caller.
"""

import hashlib
import queue
import threading
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, BinaryIO

from trainer.datasets.store import Progress

CONNECT_SECONDS = 4.0  # until the server answers; the name look-up alone may hang for a minute
STALL_SECONDS = 15.0  # in which at least STALL_BYTES must arrive
STALL_BYTES = 16_384
POLL = 0.2  # seconds
BLOCK = 1 << 16  # bytes
AHEAD = 64  # blocks that the network may be ahead of the disk


def download(what: str, url: str, expected: int, target: BinaryIO, progress: Progress) -> str:
    """Write what lies at `url` to `target`; its md5. Honours http_proxy and https_proxy.

    `expected` bytes are assumed where the server does not tell. Raises ConnectionError with the reason when the
    network fails, OSError when the disk does, and what `progress` raises.
    """
    blocks: queue.Queue = queue.Queue(AHEAD)
    given_up = threading.Event()
    threading.Thread(target=_fetch, args=(url, blocks, given_up), name="download", daemon=True).start()
    try:
        connecting = f"Connecting to download {what}"
        progress(connecting)
        total = _next(blocks, CONNECT_SECONDS, lambda: progress(connecting)) or expected
        return _copy(what, blocks, total, target, progress)
    finally:
        given_up.set()


def _copy(what: str, blocks: queue.Queue, total: int, target: BinaryIO, progress: Progress) -> str:
    md5, done = hashlib.md5(usedforsecurity=False), 0
    mark, deadline = 0, time.monotonic() + STALL_SECONDS

    def tell() -> None:
        progress(f"Downloading {what}: {100 * done // total} % of {total / 1e6:.0f} MB")

    while block := _next(blocks, deadline - time.monotonic(), tell):
        target.write(block)
        md5.update(block)
        done += len(block)
        if done > total:
            raise ConnectionError(f"it is larger than the {total} bytes that it should have")
        if done - mark >= STALL_BYTES:
            mark, deadline = done, time.monotonic() + STALL_SECONDS
        tell()
    if done < total:
        raise ConnectionError(f"the connection broke off at {100 * done // total} %")
    return md5.hexdigest()


def _next(blocks: queue.Queue, seconds: float, tick: Callable[[], object]) -> Any:
    """What the thread sends next. Raises ConnectionError if that is a failure, or nothing within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            item = blocks.get(timeout=max(0.001, min(POLL, deadline - time.monotonic())))
        except queue.Empty:
            tick()
            if time.monotonic() >= deadline:
                raise ConnectionError("the server does not answer") from None
            continue
        if isinstance(item, Exception):
            reason = getattr(item, "reason", item)  # of a URLError
            if isinstance(reason, TimeoutError):
                raise ConnectionError("the server does not answer") from item
            raise ConnectionError(str(getattr(reason, "strerror", None) or reason)) from item
        return item


def _fetch(url: str, blocks: queue.Queue, given_up: threading.Event) -> None:
    """In the thread: the length (0 if the server does not tell), then blocks, b"" at the end; or an exception."""

    def put(item: object) -> None:
        while not given_up.is_set():
            try:
                blocks.put(item, timeout=POLL)
                return
            except queue.Full:
                continue

    try:
        request = urllib.request.Request(url, headers={"User-Agent": "parallel-trainer"})
        with urllib.request.build_opener().open(request, timeout=STALL_SECONDS) as response:
            put(int(response.headers.get("Content-Length") or 0))
            while not given_up.is_set():
                block = response.read1(BLOCK)
                put(block)
                if not block:
                    return
    except (OSError, HTTPException, ValueError) as error:
        put(error)
