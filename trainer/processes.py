"""Facts about processes, and the ladder that ends a run. Imports no torch.

A process is known by pid and kernel start time together, so a reused pid is never taken for the run that had it.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import psutil

Identity = tuple[int, str]  # pid, start

STOP_GRACE = 5.0  # seconds in which the ranks may agree, save and leave
TERM_GRACE = 2.0
KILL_GRACE = 2.0


def start_of(pid: int) -> str | None:
    """When the kernel started `pid`, as text that only equality is asked of; None if it is gone or a zombie.

    On Linux the boot's id and the clock ticks since boot: both stand still when the wall clock is set.
    """
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except (OSError, IndexError):
            return None
        return None if fields[0] in (b"Z", b"X") else f"{boot}:{fields[19].decode()}"
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def identity(pid: int) -> Identity | None:
    start = start_of(pid)
    return None if start is None else (pid, start)


def recorded_identity(record: Any) -> Identity | None:
    """Whom a record with `pid` and `start` means; None if it does not say."""
    if isinstance(record, dict) and isinstance(record.get("pid"), int) and isinstance(record.get("start"), str):
        return record["pid"], record["start"]
    return None


def alive(process: Identity) -> bool:
    return start_of(process[0]) == process[1]


def is_suspended(process: Identity) -> bool:
    """Whether it was stopped by a signal, as by Ctrl-Z, and waits to be continued."""
    with contextlib.suppress(psutil.Error):
        return alive(process) and psutil.Process(process[0]).status() == psutil.STATUS_STOPPED
    return False


def tree(root: Identity) -> list[Identity]:
    """`root` and all its living descendants; [] if root is gone."""
    if not alive(root):
        return []
    with contextlib.suppress(psutil.Error):
        pids = [root[0], *(child.pid for child in psutil.Process(root[0]).children(recursive=True))]
        return [known for known in map(identity, pids) if known is not None]
    return []


def wait_gone(processes: Iterable[Identity], seconds: float) -> list[Identity]:
    """Wait until all are gone or the time is over. Returns those still alive."""
    deadline = time.monotonic() + seconds
    left = [process for process in processes if alive(process)]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if alive(process)]
    return left


def send(processes: Iterable[Identity], number: signal.Signals) -> None:
    """Signal those that are still who they were."""
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process[0], number)


def end_tree(root: Identity | None, recorded: Iterable[Identity] = (), grace: float = STOP_GRACE) -> list[Identity]:
    """Wait `grace` seconds for a run that was asked to stop, then SIGTERM, then SIGKILL all of it.

    `recorded` are its ranks and torchrun's agents, as written down: they are ended also when they lost their parent.
    Returns what is still alive after all that: [] unless the kernel holds a process.
    """
    members = _tree_of(root) | {process for process in recorded if alive(process)}
    for wait, number in ((grace, signal.SIGTERM), (TERM_GRACE, signal.SIGKILL)):
        if not wait_gone(members, wait):
            return []
        members |= _tree_of(root)
        send(members, number)
    return wait_gone(members, KILL_GRACE)


def _tree_of(root: Identity | None) -> set[Identity]:
    return set(tree(root)) if root else set()


def adopt_orphans() -> None:
    """From now on descendants of this process that lose their parent become its children, for `kill_children`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def kill_children() -> None:
    """End all descendants of this process at once."""
    me = identity(os.getpid())
    assert me is not None
    send([member for member in tree(me) if member != me], signal.SIGKILL)


def follow_parent(number: signal.Signals | None) -> None:
    """Have the kernel send `number` to this process when its parent dies, on Linux; None: not any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number or 0, 0, 0, 0)  # PR_SET_PDEATHSIG


def leave_when_parent_dies(period: float = 1.0) -> None:
    """End this process when its parent is gone: at once on Linux, where the kernel
    sees to it whatever the process is doing; elsewhere within `period` seconds, also out of a blocking call."""
    started_by = multiprocessing.parent_process()
    parent = started_by.pid if started_by else os.getppid()
    follow_parent(signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(period)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def leave_now(exit_code: int = 0) -> NoReturn:
    """End this process, its output flushed, without the interpreter's finalization.

    A thread of a C++ library (gloo's, NCCL's) that asks for the interpreter's lock while it finalizes is unwound by
    force, which aborts the process: one whose work is done would look like one that died.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)
