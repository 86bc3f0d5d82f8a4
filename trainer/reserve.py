"""Room on the disk that a run keeps for its last word, so that a full disk cannot make it look interrupted. No torch.

The launcher calls `take` when a run begins and `write_end` when it ends; nothing else touches `.reserve`.
"""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.events import EventWriter
from trainer.files import RESERVE

SIZE = 65_536  # bytes: an `end` event and what other writers may snatch of the room before it
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
TRIES, PAUSE = 5, 0.1  # seconds: some file systems take a moment to hand out what was freed


def reserve_path(folder: Path) -> Path:
    return folder / RESERVE


def take(folder: Path) -> bool:
    """Keep SIZE bytes of the disk for the run in `folder`. Whether there was room; never raises OSError."""
    path = reserve_path(folder)
    try:
        with path.open("wb") as file:
            file.write(os.urandom(SIZE))  # noise: a file system that packs files would keep no room for zeros
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        _free(folder)
        return False
    return True


def write_end(folder: Path, events: EventWriter, **fields: Any) -> bool:
    """Write the `end` event, on a full disk into the room that was kept; the reserve is gone afterwards.

    Returns whether the event is in the file. Never raises OSError.
    """
    written = events.write("end", **fields)
    _free(folder)
    for _ in range(TRIES):
        if written or events.failure is None or events.failure.errno not in NO_ROOM:
            break
        written = events.write("end", **fields)
        if not written:
            time.sleep(PAUSE)
    return written


def _free(folder: Path) -> None:
    with suppress(OSError):
        reserve_path(folder).unlink(missing_ok=True)
