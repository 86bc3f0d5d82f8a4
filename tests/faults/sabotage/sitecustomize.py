"""Faults from within: Python imports this at the start of every process whose PYTHONPATH leads here.

SABOTAGE holds orders, separated by `;`, each of these words:

    at=MODULE             just before the module is imported
    at=MODULE:FUNCTION    when the function, or a method as CLASS.METHOD, is called
    call=N                not before its Nth call
    step=N                after it was called with N (RankRecord.beat has noted the step)
    phase=NAME            after it was called with this trainer.pulse.Phase
    rank=0|1|launcher     in which process; without it in all that get there
    do=WHAT[:ARGUMENT][+WHAT...]   one of the functions below, or several in this order

The product knows nothing of it: the function is wrapped after its module was loaded. Each order is carried out once
in a process.
"""

import ctypes
import functools
import importlib.machinery
import multiprocessing
import os
import signal
import subprocess
import sys
import time


def here() -> str:
    """The rank of this process, or `launcher`, which is the only process of a run that is not ddp."""
    if "RANK" in os.environ:
        return os.environ["RANK"]
    kind, _, number = multiprocessing.current_process().name.partition("-")
    return str(int(number) - 1) if kind == "SpawnProcess" else "launcher"


def throw(name: str = "ValueError", text: str = "sabotage") -> None:
    kinds = {kind.__name__: kind for kind in (ValueError, RuntimeError, ImportError, MemoryError, OSError)}
    kinds |= {"KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}
    text = {"hostile": "\udcff\0\x1b[2J</script>\n" + "x" * 1_000_000, "0": 0}.get(text, text)
    raise kinds[name](text)


def kill(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))


def leave(code: str) -> None:
    os._exit(int(code))


def sleep(seconds: str = "1000000") -> None:
    time.sleep(float(seconds))


def spin() -> None:
    while True:
        pass


def hold() -> None:
    """Block with the interpreter's lock held: no other thread and no Python signal handler gets to run."""
    ctypes.PyDLL(None).sleep(1_000_000)


def deaf() -> None:
    signal.signal(signal.SIGTERM, lambda *_: spin())


def eat() -> None:
    """Take addresses until there are none: memory that is never touched is taken at once and from nobody else."""
    eaten = []
    while True:
        eaten.append(bytes(50_000_000))


def memory(device: str = "cpu") -> None:
    """Ask torch for more than any machine has."""
    import torch

    torch.empty(1 << 60, dtype=torch.uint8, device=device)


def drift(by: str = "1e-3") -> None:
    """Move the weights of this process."""
    import gc

    import torch

    with torch.no_grad():
        for found in gc.get_objects():
            if isinstance(found, torch.nn.Parameter):
                found += float(by)


def once(path: str) -> None:
    """Go on to what follows for the first process only that gets here; all others go about their work."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        raise Spared from None


def flood(lines: str = "65000") -> None:
    print("\n".join(f"line {number} of a flood" for number in range(int(lines))), flush=True)


def clock(seconds: str) -> None:
    """Set this process's wall clock."""
    real = time.time
    time.time = lambda: real() + float(seconds)


def child() -> None:
    """A helper program that outlives its parent if nobody ends it."""
    subprocess.Popen(["sleep", "1000"])


class Spared(Exception):
    """Another process has carried this order out."""


WHAT = {"raise": throw, "exit": leave}
ACTIONS = (kill, sleep, spin, hold, deaf, eat, memory, drift, once, flood, clock, child)
WHAT |= {action.__name__: action for action in ACTIONS}


class Order:
    def __init__(self, text: str):
        words = dict(word.split("=", 1) for word in text.split())
        self.module, _, self.function = words["at"].partition(":")
        self.rank, self.step, self.phase = (words.get(name) for name in ("rank", "step", "phase"))
        self.calls_left = int(words.get("call", "1"))
        self.actions = [action.split(":") for action in words["do"].split("+")]

    def met(self) -> None:
        """Somebody is at this order's place; carry it out if it is the one who is meant."""
        if self.rank not in (None, here()):
            return
        self.calls_left -= 1
        if self.calls_left == 0:
            try:
                for name, *rest in self.actions:
                    WHAT[name](*rest)
            except Spared:
                return

    def wrap(self, module) -> None:
        *path, name = self.function.split(".")
        owner = functools.reduce(getattr, path, module)
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*arguments, **named):
            if not (self.step or self.phase):
                self.met()
            result = original(*arguments, **named)
            is_step = self.step and arguments[1:2] == (int(self.step),)
            if is_step or (self.phase and self.phase in (getattr(value, "name", "") for value in arguments)):
                self.met()
            return result

        setattr(owner, name, wrapper)


class Finder:
    """Finds the modules that are named in orders, and runs their orders around the loading."""

    def __init__(self, orders: list[Order]):
        self.orders = orders

    def find_spec(self, name, path=None, target=None):
        mine = [order for order in self.orders if order.module == name]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if mine else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module):
            for order in mine:
                if not order.function:
                    order.met()
            load(module)
            for order in mine:
                if order.function:
                    order.wrap(module)

        spec.loader.exec_module = exec_module
        return spec


orders = [Order(text) for text in os.environ.get("SABOTAGE", "").split(";") if text.strip()]
if orders:
    sys.meta_path.insert(0, Finder(orders))
