"""Ending a run from outside: ask, then terminate, then kill, then look. Imports no torch."""

import time

from trainer.events import EventWriter
from trainer.processes import STOP_GRACE, end_tree
from trainer.runs import Run, RunError, RunStatus


def stop_run(run: Run, grace: float = STOP_GRACE) -> RunStatus:
    """Stop a living run and return its final status; does nothing to one that has ended.

    Takes at most `grace` + 4 seconds. Raises RunError if a process cannot be ended.
    """
    state = run.state()
    if not state.status.living:
        return state.status
    root = run.identity()
    assert root is not None  # a living run has a process
    asked = time.monotonic()
    run.ask_to_stop()
    left = end_tree(root, run.rank_identities(), grace)
    if left:
        raise RunError(f"{run.id} still has processes that cannot be ended: {', '.join(str(p[0]) for p in left)}")
    state.update()
    if state.status == RunStatus.INTERRUPTED:  # killed before it could say so; nobody else writes any more
        step = max((record.get("step", 0) for record in run.rank_records()), default=0)
        how = f"killed after {grace:g} s" if time.monotonic() - asked >= grace else "its processes ended"
        error = f"{how} without an answer; the last checkpoint is kept"
        EventWriter(run.events_path).write("end", status="stopped", error=error, rank=None, step=step)
        state.update()
    return state.status
