"""`system.jsonl`: what the machine and the run's processes use, each second, written by the launcher. No torch.

Each line: {time, cpu: percent of all cores, own: what the run's processes took of that, memory: bytes of the run's
processes, gpus: [{index, use: percent, memory: bytes, power: watts}]}.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from trainer.devices import nvml
from trainer.events import LineWriter
from trainer.runs import Run

PERIOD = 1.0  # seconds


@contextmanager
def sample_system(run: Run) -> Iterator[None]:
    """Write samples in a thread while the block runs."""
    done = threading.Event()
    thread = threading.Thread(target=_sample, args=(run, done), name="system", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(5)


def _sample(run: Run, done: threading.Event) -> None:
    """A sample that cannot be taken or written is left out; the next one is tried all the same."""
    own = _Own(psutil.Process())
    psutil.cpu_percent()
    writer = LineWriter(run.path / "system.jsonl")
    with nvml() as lib:
        while not done.wait(PERIOD):
            with suppress(OSError, psutil.Error):
                line = {"time": round(time.time(), 3), "cpu": psutil.cpu_percent(), **own.sample()}
                if lib is not None:
                    with suppress(lib.NVMLError):  # a driver that was reset: its processor and memory still count
                        line["gpus"] = _gpus(lib)
                writer.append(line)
    writer.close()


class _Own:
    """What a process and its descendants use."""

    def __init__(self, root: psutil.Process):
        self.root = root
        self._cores = psutil.cpu_count() or 1
        self._busy: dict[int, float] = {}  # seconds of processor time by pid, at the last sample
        self._at = time.monotonic()
        with suppress(psutil.Error):
            self.sample()

    def sample(self) -> dict[str, float]:
        """{own: percent of all cores since the last sample, memory: bytes}."""
        memory, busy = 0, {}
        for process in (self.root, *self.root.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():
                memory += process.memory_info().rss
                times = process.cpu_times()
                busy[process.pid] = times.user + times.system
        now = time.monotonic()
        taken = sum(max(0.0, seconds - self._busy.get(pid, 0.0)) for pid, seconds in busy.items())
        share = 100 * taken / max(now - self._at, 1e-3) / self._cores
        self._busy, self._at = busy, now
        return {"own": round(min(share, 100.0), 1), "memory": memory}


def _gpus(lib: Any) -> list[dict[str, Any]]:
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    found = []
    for index in range(lib.nvmlDeviceGetCount()):
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        if lib.nvmlDeviceGetUUID(handle) not in wanted:
            continue
        sample = {
            "index": index,
            "use": lib.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory": int(lib.nvmlDeviceGetMemoryInfo(handle).used),
        }
        with suppress(lib.NVMLError):  # not every board tells its power
            sample["power"] = lib.nvmlDeviceGetPowerUsage(handle) / 1000
        found.append(sample)
    return found
