"""The watch over a run of one process, from a small process beside it. Imports no torch.

A thread would not do: code that keeps the interpreter to itself hangs the watch as well.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from trainer.processes import Identity, follow_parent, identity, is_suspended, send, tree
from trainer.pulse import Board, Silence, Watch
from trainer.runs import Run
from trainer.signals import StopOnSignal

PERIOD = 0.5  # seconds


@contextmanager
def watched(run: Run, board: Board, limit: float, tell: Callable[[Silence], object]) -> Iterator[None]:
    """While the block runs: end this process if it gives no sign of progress for `limit` seconds, or if its run is
    deleted. `tell` is called in the other process, when this one is gone."""
    me = identity(os.getpid())
    assert me is not None
    child = os.fork()  # shares the board
    if child == 0:
        try:
            _watch(run, Watch(board, limit), me, tell)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _watch(run: Run, watch: Watch, whom: Identity, tell: Callable[[Silence], object]) -> None:
    follow_parent(signal.SIGKILL)  # also if somebody has frozen this process
    for number in StopOnSignal.NUMBERS:
        signal.signal(number, signal.SIG_IGN)  # they are meant for the one that trains
    while os.getppid() == whom[0]:
        time.sleep(PERIOD)
        if is_suspended(whom):  # by its owner, as with Ctrl-Z
            watch.forgive()
        silence = watch.look()
        if silence or not run.is_there:
            follow_parent(None)  # it ends first, and then there is something to tell
            send([process for process in tree(whom) if process[0] != os.getpid()], signal.SIGKILL)
            if silence:
                tell(silence)
            return
