"""The faults that the product promises to survive, and how one is performed."""

import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.stage import Stage
from trainer.devices import list_gpus

OK, FAILED, NEEDS_ROOT, NEEDS_GPU, NOT_HERE = "ok", "FAILED", "needs root", "needs GPU", "does not apply"


@dataclass(frozen=True)
class Fault:
    """`act` injects the fault into real processes, asserts what is promised, and says in words what was seen."""

    number: int
    name: str
    injected: str
    promised: str
    act: Callable[[Stage], str]
    quick: bool  # a matter of seconds, so every run of the tests performs it
    root: bool  # needs the rights to mount or to make namespaces
    gpu: bool
    not_here: str  # why this fault cannot befall this program; "" if it can


@dataclass(frozen=True)
class Result:
    fault: Fault
    verdict: str
    seen: str = ""
    seconds: float = 0.0
    left: int = 0  # processes that were still there when the scenario was over
    trace: str = ""


CATALOGUE: dict[str, Fault] = {}


def fault(
    injected: str, promised: str, *, quick: bool = False, root: bool = False, gpu: bool = False, not_here: str = ""
) -> Callable[[Callable[[Stage], str]], Callable[[Stage], str]]:
    """Put a scenario into the catalogue, under its own name with dashes."""

    def register(act: Callable[[Stage], str]) -> Callable[[Stage], str]:
        name = act.__name__.replace("_", "-")
        assert name not in CATALOGUE
        CATALOGUE[name] = Fault(len(CATALOGUE) + 1, name, injected, promised, act, quick, root, gpu, not_here)
        return act

    return register


def perform(fault: Fault, is_root: bool) -> Result:
    """Carry a scenario out in a directory of its own, count what it leaves behind, and clean up."""
    if fault.not_here:
        return Result(fault, NOT_HERE, fault.not_here)
    if fault.gpu and len(list_gpus()) < 2:
        return Result(fault, NEEDS_GPU, "not run")
    if fault.root and not is_root:
        return Result(fault, NEEDS_ROOT, "not run")
    directory = Path(tempfile.mkdtemp(prefix="fault-"))
    directory.chmod(0o755)  # some scenarios run as nobody
    stage = Stage(directory)
    began = time.monotonic()
    trace = ""
    try:
        seen, verdict = fault.act(stage), OK
    except Exception as error:
        text = str(error).strip() or type(error).__name__
        seen, verdict, trace = " ".join(text.split())[:400], FAILED, traceback.format_exc()
    seconds = time.monotonic() - began
    left = []
    try:
        left = stage.left()
        if left and verdict == OK:
            seen, verdict = f"{seen}; left behind: {', '.join(stage.describe(left))}", FAILED
    finally:
        stage.close()
        shutil.rmtree(directory, ignore_errors=True)
    return Result(fault, verdict, seen, seconds, len(left), trace)
