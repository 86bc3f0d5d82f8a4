"""Where and when something was measured, and the tables as Markdown and JSON."""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from trainer.devices import cpu_cores, cpu_has_bf16, cpu_name, list_gpus

RECORDS = Path(__file__).parent / "records"
PACKAGES = ("torch", "torchvision", "gradio", "numpy")


def machine() -> dict[str, Any]:
    gpus = [gpu.name for gpu in list_gpus()]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "processor": cpu_name(),
        "cores": cpu_cores(),
        "narrow arithmetic": narrow(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "GPUs": ", ".join(gpus) or "none: GPU figures are not measured",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def commit() -> str:
    """The commit, with a + if files differ from it."""
    root = Path(__file__).parent.parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True).stdout.strip()

    head = git("rev-parse", "--short", "HEAD")
    return (head or "unknown") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def narrow() -> str:
    if not cpu_has_bf16():
        return "none: bf16 falls back to fp32"
    flags = Path("/proc/cpuinfo").read_text()
    return "amx_bf16" if "amx_bf16" in flags else "avx512_bf16"


def paired(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The ratio of two cases: the median over the rounds, and from the smallest to the largest."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def spread(values: Sequence[float], digits: int = 0) -> str:
    low, high = min(values), max(values)
    return f"{statistics.median(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def as_markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"### {title}", "", f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def write(tables: list[str], facts: dict[str, Any], numbers: dict[str, Any]) -> Path:
    """A record: Markdown to read, JSON with every number beside it. Returns the first."""
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{time.strftime('%Y%m%d-%H%M')}-{facts['commit'].rstrip('+')}.md"
    about = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    path.write_text(f"# Measured {facts['date']}\n\n{about}\n\n" + "\n".join(tables), "utf-8")
    path.with_suffix(".json").write_text(json.dumps({"machine": facts, **numbers}, indent=1), "utf-8")
    return path
