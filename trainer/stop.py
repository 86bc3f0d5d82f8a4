"""Ending a run from outside: ask, then terminate, then kill, then look. Imports no torch."""

import time
from contextlib import suppress

from trainer import reserve
from trainer.events import EventWriter
from trainer.files import remove_leftovers
from trainer.processes import STOP_GRACE, TERM_GRACE, Identity, end_tree, recorded_identity
from trainer.queue import cancel
from trainer.runs import Run, RunError, RunStatus


def stop_run(run: Run, grace: float = STOP_GRACE) -> RunStatus:
    """Stop a run and return its final status; takes a queued one out of the queue.

    Nothing is left of it afterwards, also of one that has ended but whose processes have not. Takes at most
    `grace` + 4 seconds. Raises RunError if a process cannot be ended.
    """
    state = run.state()
    waiter = recorded_identity(run.launch())
    if state.status == RunStatus.QUEUED and cancel(run):
        _end(run, waiter, grace)  # the trainer that waited for its turn sees that it was in vain
        return RunStatus.STOPPED
    state.read_all()
    if not state.status.living:
        _end(run, run.identity(), grace)
        return state.status
    asked = time.monotonic()
    with suppress(OSError):  # a directory that cannot be written: then without asking
        run.ask_to_stop()
    _end(run, run.identity(), grace)
    state.read_all()
    if state.status == RunStatus.INTERRUPTED:  # killed before it could say so; nobody else writes any more
        how = f"killed after {grace:g} s" if time.monotonic() - asked >= grace else "its processes ended"
        error = f"{how} without an answer; the last checkpoint is kept"
        writer = EventWriter(run.events_path)
        facts = {"error": error, "rank": None, "step": run.last_step(), "cause": None}
        reserve.write_end(run.path, writer, status="stopped", **facts)
        writer.close()
        state.read_all()
    return state.status


def _wait_until_free(run: Run, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_busy := run.is_at_work(run.process()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return not is_busy


def _end(run: Run, root: Identity | None, grace: float) -> None:
    left = end_tree(root, run.rank_identities(), grace)
    if left:
        raise RunError(f"{run.id} still has processes that cannot be ended: {', '.join(str(p[0]) for p in left)}")
    if not _wait_until_free(run, grace + TERM_GRACE):  # a process that cannot be seen from here has it
        raise RunError(
            f"{run.id} is trained by process {root[0] if root else '?'} of another container or user, which cannot be "
            "ended from here: it was asked to stop, and will once it sees that"
        )
    remove_leftovers(run.path)
