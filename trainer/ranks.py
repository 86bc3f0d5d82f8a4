"""`ranks/<n>.json`: what each rank says about itself, for the launcher, the page and the one who asks why. No torch."""

import json
import os
import time
import traceback
from contextlib import suppress
from typing import Any

from trainer.causes import cause_of
from trainer.files import write_atomic
from trainer.processes import Identity, start_of
from trainer.pulse import Board, Phase
from trainer.runs import Run

BEAT = 1.0  # seconds between two heartbeats at most


class RankRecord:
    """Written whole each time, by its own rank only. `done` holds the outcome once the rank has finished.

    Signs of progress go to `board`, where the launcher sees them at once; the file follows once a second. `agent` is
    torchrun's, if it started the rank.
    """

    def __init__(self, run: Run, rank: int, board: Board | None = None, agent: Identity | None = None):
        with suppress(OSError):
            run.ranks_path.mkdir(exist_ok=True)
        self.path = run.ranks_path / f"{rank}.json"
        self.values: dict[str, Any] = {"rank": rank, "pid": os.getpid(), "start": start_of(os.getpid()), "step": 0}
        if agent:
            self.values["agent"] = {"pid": agent[0], "start": agent[1]}
        self._rank = rank
        self._board = board or Board(rank + 1)
        self._last = 0.0
        self.at(Phase.STARTING)
        self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        self.values["heartbeat"] = time.time()
        with suppress(OSError):  # a full disk must not end the training
            write_atomic(self.path, json.dumps(self.values))

    def at(self, phase: Phase) -> None:
        """A sign of progress: this rank begins `phase`."""
        self._board.sign(self._rank, phase, self.values["step"])

    def beat(self, step: int, phase: Phase = Phase.STEPPING) -> None:
        """A sign of progress: this rank lives and is so far."""
        self.values["step"] = step
        self.at(phase)
        if time.monotonic() - self._last >= BEAT:
            self._write()

    def done(self, outcome: dict[str, Any]) -> None:
        self.values["done"] = outcome
        self._write()

    def failed(self, error: BaseException) -> None:
        """Record why this rank ends, before its peers notice that it is gone."""
        self.values["error"] = {
            "type": type(error).__name__,
            "message": str(error)[:2000],
            "traceback": "".join(traceback.format_exception(error))[-8000:],
            "time": time.time(),
            "peer": is_peer_error(error),
            "cause": cause_of(error),
        }
        self._write()


PEER_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "Wait timeout",
    "Socket Timeout",
    "Application timeout caused pair closure",  # gloo, of a peer that no packet comes from
    "NCCL communicator was aborted",
    "remote process exited",
)


def is_peer_error(error: BaseException) -> bool:
    """Whether an error only says that another rank went away or stayed silent."""
    return isinstance(error, RuntimeError) and any(sign.lower() in str(error).lower() for sign in PEER_SIGNS)
