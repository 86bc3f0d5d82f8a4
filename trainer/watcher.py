"""Small processes beside the one that trains: the watch over it, and the guard over ranks that start. No torch.

A thread would not do: code that keeps the interpreter to itself hangs the watch as well.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trainer.processes import Identity, follow_parent, identity, is_suspended, send, tree
from trainer.pulse import Board, Phase, Silence, Watch
from trainer.runs import Run
from trainer.signals import StopOnSignal

PERIOD = 0.5  # seconds
START_PERIOD = 0.1


@contextmanager
def watched(run: Run, board: Board, limit: float, tell: Callable[[Silence], object]) -> Iterator[None]:
    """While the block runs: end this process if it gives no sign of progress for `limit` seconds, or if its run is
    deleted. `tell` is called in the other process, when this one is gone."""
    with _beside(lambda me: _watch(run, Watch(board, limit), me, tell)):
        yield


@contextmanager
def guarded(board: Board) -> Iterator[None]:
    """While the block runs: if this process dies, end what it has started. Ranks follow it by themselves as soon as
    they run code of ours; before that they import torch, which takes long on a busy machine or a cold disk."""
    with _beside(lambda me: _guard(board, me)):
        yield


@contextmanager
def _beside(work: Callable[[Identity], None]) -> Iterator[None]:
    """While the block runs, a fork of this process, told who this one is, does `work`."""
    me = identity(os.getpid())
    assert me is not None
    child = os.fork()  # shares the board
    if child == 0:
        try:
            for number in StopOnSignal.NUMBERS:
                signal.signal(number, signal.SIG_IGN)  # they are meant for the one that trains
            work(me)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _guard(board: Board, whom: Identity) -> None:
    family: list[Identity] = []
    while os.getppid() == whom[0]:
        family = tree(whom) or family
        if all(board.read(rank)[1] > Phase.STARTING for rank in range(board.world_size)):
            follow_parent(signal.SIGKILL)
            while os.getppid() == whom[0]:
                signal.pause()
        time.sleep(START_PERIOD)
    send([process for process in family if process[0] != os.getpid()], signal.SIGKILL)


def _watch(run: Run, watch: Watch, whom: Identity, tell: Callable[[Silence], object]) -> None:
    follow_parent(signal.SIGKILL)  # also if somebody has frozen this process
    while os.getppid() == whom[0]:
        time.sleep(PERIOD)
        if is_suspended(whom):  # by its owner, as with Ctrl-Z
            watch.forgive()
        run.keep_claim()
        silence = watch.look()
        if silence or not run.is_there:
            follow_parent(None)  # it ends first, and then there is something to tell
            send([process for process in tree(whom) if process[0] != os.getpid()], signal.SIGKILL)
            if silence:
                tell(silence)
            return
