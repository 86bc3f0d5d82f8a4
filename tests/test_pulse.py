"""A rank without progress is found and named; time in which the looker itself stood still is no silence."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import await_true
from trainer.pulse import LONGEST_TICK, START_LIMIT, Board, Phase, Watch


class Clock:
    """Stands in for time.monotonic."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def look_for(watch: Watch, clock: Clock, seconds: float, moving: tuple[int, ...] = ()):
    """Look twice a second while the ranks in `moving` go on."""
    found = None
    for _ in range(round(2 * seconds)):
        clock.now += 0.5
        for rank in moving:
            watch.board.sign(rank, Phase.STEPPING, 9)
        found = found or watch.look()
    return found


def test_who_goes_on_is_never_silent(clock: Clock):
    watch = Watch(Board(2), limit=5)
    assert look_for(watch, clock, 60, moving=(0, 1)) is None


def test_the_one_that_hangs_is_named_not_those_that_wait_for_it(clock: Clock):
    board = Board(3)
    watch = Watch(board, limit=5)
    for rank in (0, 2):
        board.sign(rank, Phase.EXCHANGE, 8)
    board.sign(1, Phase.EVALUATING, 7)
    silence = look_for(watch, clock, 10)
    assert (silence.rank, silence.step, silence.phase) == (1, 7, Phase.EVALUATING)
    assert 5 < silence.seconds <= 6
    assert "Rank 1" in str(silence)
    assert "at step 7, while it evaluated" in str(silence)


def test_a_rank_that_moves_is_not_blamed_for_one_that_waits_too_long(clock: Clock):
    board = Board(2)
    watch = Watch(board, limit=5)
    board.sign(0, Phase.EXCHANGE, 3)
    silence = look_for(watch, clock, 10, moving=(1,))
    assert silence.rank == 0


def test_one_that_never_joined_is_named(clock: Clock):
    board = Board(2)
    watch = Watch(board, limit=5)
    board.sign(0, Phase.JOINING, 0)
    assert look_for(watch, clock, START_LIMIT - 1, moving=()) is not None  # it waits in vain, whoever is to blame
    watch = Watch(board, limit=90)
    assert look_for(watch, clock, 89) is None
    silence = look_for(watch, clock, 5)
    assert silence.rank == 1
    assert "before its first step, while it started" in str(silence)


def test_imports_may_take_a_minute_whatever_the_limit(clock: Clock):
    assert look_for(Watch(Board(1), limit=2), clock, START_LIMIT - 1) is None
    assert look_for(Watch(Board(1), limit=2), clock, START_LIMIT + 2).phase == Phase.STARTING


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_its_limit_and_its_words(clock: Clock, phase: Phase):
    board = Board(1)
    board.sign(0, phase, 1)
    assert look_for(Watch(board, limit=70), clock, 70) is None
    assert look_for(Watch(board, limit=70), clock, 72).phase == phase


def test_a_suspended_looker_has_not_heard_silence(clock: Clock):
    watch = Watch(Board(1), limit=5)
    watch.look()
    clock.now += 8 * 3600  # the lid was closed, or the run was suspended with Ctrl-Z
    assert watch.look() is None
    clock.now += LONGEST_TICK
    assert watch.look() is None


def test_a_suspended_rank_is_named_whatever_it_was_doing(clock: Clock, start_process):
    processes = [start_process(sys.executable, "-c", "input()", stdin=subprocess.PIPE) for _ in range(2)]
    os.kill(processes[0].pid, signal.SIGSTOP)
    await_true(lambda: psutil.Process(processes[0].pid).status() == psutil.STATUS_STOPPED, 10, "its suspension")
    board = Board(2)
    watch = Watch(board, 5, [process.pid for process in processes])
    board.sign(0, Phase.EXCHANGE, 4)
    board.sign(1, Phase.STEPPING, 4)
    assert look_for(watch, clock, 10).rank == 0


def test_a_board_reads_what_was_signed():
    board = Board(2)
    board.sign(1, Phase.SAVING, 123_456_789_012)
    board.sign(1, Phase.STEPPING, 123_456_789_013)
    assert board.read(0) == (0, Phase.STARTING, 0)
    assert board.read(1) == (2, Phase.STEPPING, 123_456_789_013)
