"""A process is known by pid and start time together, and a tree of them can be ended whatever it does about it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.conftest import await_true
from trainer.processes import alive, end_tree, identity, send, start_of, tree, wait_gone

READY = "import signal, sys, subprocess, time\n{}\nprint('ready', flush=True)\nsys.stdin.read()"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
POLITE = "signal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))"
FAMILY = "subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n" * 2


@pytest.fixture
def child(start_process) -> Callable[[str], subprocess.Popen]:
    def start(code: str = "") -> subprocess.Popen:
        process = start_process(sys.executable, "-c", READY.format(code), stdin=-1, stdout=-1)
        assert process.stdout.readline() == "ready\n"
        return process

    return start


def test_this_process_is_alive_and_keeps_its_start():
    known = identity(os.getpid())
    assert known
    assert alive(known)
    assert identity(os.getpid()) == known


def test_two_processes_with_one_pid_are_told_apart(child):
    process = child()
    assert not alive((process.pid, "boot:1"))
    assert not alive((process.pid, start_of(os.getpid()) or ""))


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**31 - 1, 10**30])
def test_a_pid_that_nobody_has_is_nobody(pid: int):
    assert identity(pid) is None


def test_a_zombie_is_not_alive(child):
    process = child()
    known = identity(process.pid)
    assert known
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    assert os.path.exists(f"/proc/{process.pid}") or sys.platform != "linux"
    assert not alive(known)
    assert identity(process.pid) is None
    assert tree(known) == []


def test_a_process_with_brackets_and_spaces_in_its_name_has_a_start(child):
    process = child("import pathlib; pathlib.Path('/proc/self/comm').write_text('a) Z (b')")
    assert identity(process.pid) is not None


def test_a_tree_is_its_root_and_all_below(child):
    process = child(FAMILY)
    known = identity(process.pid)
    assert known
    found = tree(known)
    assert found[0] == known
    assert len(found) == 3
    assert end_tree(known, grace=0) == []
    assert not any(map(alive, found))


def test_the_tree_of_another_with_the_same_pid_is_empty(child):
    assert tree((child().pid, "boot:1")) == []


def test_a_signal_never_reaches_another_with_the_same_pid(child):
    process = child()
    send([(process.pid, "boot:1")], signal.SIGKILL)
    known = identity(process.pid)
    assert known
    assert wait_gone([known], 0.3) == [known]


def test_waiting_ends_with_the_process(child):
    process = child()
    known = identity(process.pid)
    assert known
    threading.Timer(0.2, process.kill).start()
    begin = time.monotonic()
    assert wait_gone([known], 30) == []
    assert time.monotonic() - begin < 10


def test_one_that_leaves_within_the_grace_is_not_signalled(child):
    process = child(POLITE)
    threading.Timer(0.2, process.stdin.close).start()
    known = identity(process.pid)
    assert known
    assert end_tree(known, grace=30) == []
    assert process.stdout.read() == ""


def test_one_that_stays_is_asked_first(child):
    process = child(POLITE)
    known = identity(process.pid)
    assert known
    assert end_tree(known, grace=0.1) == []
    assert process.stdout.read() == "bye\n"
    assert process.wait(10) == 0


def test_one_that_is_deaf_is_killed(child):
    process = child(DEAF)
    known = identity(process.pid)
    assert known
    begin = time.monotonic()
    assert end_tree(known, grace=0.1) == []
    assert time.monotonic() - begin < 10
    assert process.wait(10) == -signal.SIGKILL


def test_a_stopped_process_is_ended_too(child):
    process = child()
    process.send_signal(signal.SIGSTOP)
    known = identity(process.pid)
    assert known
    assert end_tree(known, grace=0) == []


def test_ending_one_that_is_gone_does_nothing(child):
    process = child()
    known = identity(process.pid)
    assert known
    process.kill()
    process.wait(10)
    assert end_tree(known) == []


def test_a_recorded_orphan_is_ended_and_a_stranger_with_its_pid_is_not(child):
    root, orphan, stranger = child(), child(DEAF), child()
    known, lost = identity(root.pid), identity(orphan.pid)
    assert known
    assert lost
    assert end_tree(known, [lost, (stranger.pid, "boot:1")], grace=0) == []
    assert not alive(lost)
    assert stranger.poll() is None


def test_a_child_leaves_when_its_parent_is_killed(start_process):
    leaving = "import time; from trainer.processes import leave_when_parent_dies as l; l(0.05); print('up', flush=True)"
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {leaving + '; time.sleep(600)'!r}])"
    parent = start_process(sys.executable, "-c", f"{code}; print(p.pid, flush=True); p.wait()", stdout=-1)
    known = identity(int(parent.stdout.readline()))
    assert known
    assert parent.stdout.readline() == "up\n"
    parent.kill()
    await_true(lambda: not alive(known), 20, "the child's end")


LEAVER = """
import atexit, os, sys
from trainer.processes import leave_now
sys.stdout = open(1, "w", closefd=False)  # it holds back what is printed, whatever the environment says
atexit.register(os.abort)
sys.stdin.readline()
print("done")
leave_now({})
"""


@pytest.mark.parametrize("exit_code", [0, 3])
def test_one_that_leaves_now_has_its_exit_code_and_its_words_though_finalization_aborts(start_process, exit_code: int):
    process = start_process(sys.executable, "-c", LEAVER.format(exit_code), stdin=-1, stdout=-1)
    assert process.communicate("\n", timeout=30)[0] == "done\n"
    assert process.returncode == exit_code


def test_one_whose_reader_has_gone_leaves_now_all_the_same(start_process):
    process = start_process(sys.executable, "-c", LEAVER.format(0), stdin=-1, stdout=-1)
    process.stdout.close()
    process.communicate("\n", timeout=30)
    assert process.returncode == 0
