"""What this machine has: GPUs, cores, and how fast they take a narrow number format. Imports no torch.

GPUs are numbered as `nvidia-smi` numbers them; a process is pinned to its GPUs by UUID, so that the number on
the page and the chip that works are the same whatever order CUDA would choose.
"""

import os
import platform
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """One visible GPU. Memory in bytes."""

    index: int
    uuid: str
    name: str
    memory_total: int
    memory_free: int


@contextmanager
def nvml():
    """NVIDIA's management library, or None where there is no driver."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pynvml
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order; [] without a driver."""
    with nvml() as lib:
        if lib is None:
            return []
        found = []
        for index in range(lib.nvmlDeviceGetCount()):
            handle = lib.nvmlDeviceGetHandleByIndex(index)
            memory = lib.nvmlDeviceGetMemoryInfo(handle)
            found.append(
                Gpu(
                    index,
                    lib.nvmlDeviceGetUUID(handle),
                    lib.nvmlDeviceGetName(handle),
                    int(memory.total),
                    int(memory.free),
                )
            )
    return visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible(gpus: list[Gpu], setting: str | None) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES: numbers or UUIDs (or their beginnings).

    As CUDA does, hides everything after an unknown one, and everything at all if one is named twice.
    """
    if setting is None:
        return gpus
    chosen: list[Gpu] = []
    for part in (text.strip() for text in setting.split(",")):
        match = [g for g in gpus if part and (part == str(g.index) or g.uuid.startswith(part))]
        if len(match) != 1:
            break
        if match[0] in chosen:
            return []
        chosen += match
    return chosen


def cpu_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    for line in _cpuinfo():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_has_bf16() -> bool:
    """Whether the processor multiplies bf16 in hardware. Without that bf16 is slower than fp32."""
    flags = next((line.split() for line in _cpuinfo() if line.startswith("flags")), [])
    return "amx_bf16" in flags or "avx512_bf16" in flags


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
