"""Signs of progress of all ranks in memory shared with their launcher, and the one that stays silent. No torch.

Not in files: on a full disk a healthy rank would look dead. Each sign costs three stores into shared memory.
"""

import multiprocessing
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import psutil


class Phase(IntEnum):
    """What a rank does. In EXCHANGE it may be waiting for the others; in any other phase it depends on itself."""

    STARTING = 0  # imports
    JOINING = 1
    PREPARING = 2
    STEPPING = 3
    EXCHANGE = 4
    EVALUATING = 5
    SAVING = 6
    ENDING = 7


WORDS = {
    Phase.STARTING: "while it started",
    Phase.JOINING: "while the ranks joined",
    Phase.PREPARING: "while it prepared",
    Phase.STEPPING: "in a step",
    Phase.EXCHANGE: "in backward or in an exchange with the other ranks",
    Phase.EVALUATING: "while it evaluated",
    Phase.SAVING: "while it saved a checkpoint",
    Phase.ENDING: "while it ended",
}
_WAITING = (Phase.EXCHANGE, Phase.JOINING, Phase.ENDING)
_FIELDS = 3  # signs given, phase, step
LONGEST_TICK = 1.0  # seconds that count between two looks
START_LIMIT = 60.0  # seconds at least for the imports, in which a rank cannot give signs, on a cold or busy disk


class Board:
    """One row for each rank. Passed to spawned ranks as it is."""

    def __init__(self, world_size: int):
        self.world_size = world_size
        self._cells = multiprocessing.get_context("spawn").RawArray("q", _FIELDS * world_size)

    def sign(self, rank: int, phase: Phase, step: int) -> None:
        """Called by the rank itself only."""
        cells, at = self._cells, rank * _FIELDS
        cells[at + 1] = phase
        cells[at + 2] = step
        cells[at] += 1

    def read(self, rank: int) -> tuple[int, Phase, int]:
        """(signs given so far, phase, step)."""
        signs, phase, step = self._cells[rank * _FIELDS : (rank + 1) * _FIELDS]
        return signs, Phase(phase), step


@dataclass(frozen=True)
class Silence:
    """A rank that gave no sign of progress for longer than it may."""

    rank: int
    step: int
    phase: Phase
    seconds: float

    def __str__(self) -> str:
        where = f"at step {self.step}" if self.step else "before its first step"
        return f"Rank {self.rank} gave no sign of progress for {self.seconds:.0f} s {where}, {WORDS[self.phase]}"


@dataclass
class Watch:
    """Looks at a board now and then. Only time in which the looker itself runs counts, at most a second a look:
    a suspended laptop, Ctrl-Z or a changed clock is no silence."""

    board: Board
    limit: float  # seconds
    pids: list[int | None] = field(default_factory=list)  # of the ranks, where they are processes of their own
    _signs: dict[int, int] = field(default_factory=dict)
    _silent: dict[int, float] = field(default_factory=dict)
    _looked: float = field(default_factory=time.monotonic)

    def forgive(self) -> None:
        """Count all silence anew."""
        self._silent = dict.fromkeys(self._silent, 0.0)

    def look(self) -> Silence | None:
        """The rank that holds the run up, once any has been silent for too long."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LONGEST_TICK), now
        for rank in range(self.board.world_size):
            signs = self.board.read(rank)[0]
            has_moved = signs != self._signs.get(rank)
            self._signs[rank] = signs
            self._silent[rank] = 0.0 if has_moved else self._silent[rank] + passed
        if not any(self._is_late(rank) for rank in self._silent):
            return None
        culprit = max(self._silent, key=self._suspicion)
        _, phase, step = self.board.read(culprit)
        return Silence(culprit, step, phase, self._silent[culprit])

    def _is_late(self, rank: int) -> bool:
        is_starting = self.board.read(rank)[1] == Phase.STARTING
        return self._silent[rank] > (max(self.limit, START_LIMIT) if is_starting else self.limit)

    def _suspicion(self, rank: int) -> tuple[bool, bool, float]:
        """Suspended before merely silent; busy with itself before waiting for others; then the longest silent.

        Ranks that are not silent themselves are out of the question.
        """
        _, phase, _ = self.board.read(rank)
        silent = self._silent[rank]
        is_silent = silent > self.limit / 2 and (phase != Phase.STARTING or self._is_late(rank))
        return is_silent and self._is_suspended(rank), is_silent and phase not in _WAITING, silent

    def _is_suspended(self, rank: int) -> bool:
        pid: Any = self.pids[rank] if rank < len(self.pids) else None
        try:
            return pid is not None and psutil.Process(pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False
