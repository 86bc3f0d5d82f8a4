"""A calibration: short measurements in real processes, from which trainer/forecast.py reckons.

One process a rank is spawned, as many as the widest world; for each world its ranks time the step and the exchange
(trainer/probe.py) while the others wait without a load. They meet at a store of this process on a port that the kernel
chose, and none of them outlives it.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from statistics import mean
from typing import Any

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from trainer import probe
from trainer.allocator import keep_freed_memory
from trainer.calibration import Calibration, CalibrationError, Compute, Exchange
from trainer.config import TrainConfig
from trainer.devices import cpu_cores, cpu_name
from trainer.launch import pin
from trainer.parallel import Worker
from trainer.placement import Placement
from trainer.processes import leave_now, leave_when_parent_dies

STEP_SECONDS, EXCHANGE_SECONDS = 1.0, 0.5  # of each measurement
SIZES = (64, 2**22)  # bytes that are exchanged beside the whole gradient
PATIENCE = 120.0  # seconds without an answer after which a rank counts as hung
BLAME_GRACE, END_GRACE = 0.5, 5.0


def calibrate(
    config: TrainConfig,
    placements: Sequence[tuple[Placement, int]],
    tell: Callable[[str], None] = lambda text: None,
    seconds: float = STEP_SECONDS,
) -> Calibration:
    """Measure `config`'s network on these placements, each with the pictures of each rank.

    seconds: how long each kind of step is timed. Raises CalibrationError.
    """
    begun = time.monotonic()
    widest = max((placement for placement, _ in placements), key=lambda placement: placement.world_size)
    is_cpu = not widest.gpus
    size = probe.gradient_bytes(config)
    clock = _Clock()
    compute: list[Compute] = []
    exchange: list[Exchange] = []
    with _ranks(widest) as ranks:
        for placement, batch in placements:
            world = placement.world_size
            team = ranks[:world]
            tell(f"calibrating {world} {'rank' if world == 1 else 'ranks'}")
            _ask(team, "join", world, placement.threads, placement.backend)
            for pictures in sorted({max(1, batch // 2), batch}):
                answers = _ask(team, "step", config, pictures, seconds)
                found = {key: mean(answer[key] for answer in answers) for key in ("seconds", "spread")}
                compute.append(Compute(ranks=world, batch=pictures, **found))
            for bytes_ in sorted({*SIZES, size}) if world > 1 else ():
                answers = _ask(team, "exchange", bytes_, min(seconds, EXCHANGE_SECONDS))
                taken = mean(answer["seconds"] for answer in answers)
                exchange.append(Exchange(ranks=world, size=bytes_, seconds=taken))
            _ask(team, "part")
        precision = _ask(ranks[:1], "precision", config)[0]
        others = _others(clock, ranks)
    return Calibration(
        made=time.time(),
        model=config.model,
        optimizer=config.optimizer,
        precision=precision,
        device=cpu_name() if is_cpu else widest.gpus[0].name,
        is_cpu=is_cpu,
        cores=cpu_cores(),
        torch=version("torch"),
        others=others,
        gradient_bytes=size,
        compute=compute,
        exchange=exchange,
        took=round(time.monotonic() - begun, 1),
    )


class _Clock:
    """Seconds of processor time of this machine and of this process since it was made."""

    def __init__(self) -> None:
        self._begun = self._now()

    def _now(self) -> tuple[float, float, float]:
        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return idle, own.user + own.system, time.monotonic()

    def read(self) -> tuple[float, float, float]:
        """(idle, own, passed)."""
        idle, own, passed = (now - before for now, before in zip(self._now(), self._begun, strict=True))
        return idle, own, passed


def _others(clock: _Clock, ranks: Sequence["_Rank"]) -> float:
    """The share of the machine's cores that neither idled nor worked for this process or its ranks."""
    idle, own, passed = clock.read()
    for rank in ranks:
        with suppress(psutil.Error):
            times = psutil.Process(rank.process.pid).cpu_times()
            own += times.user + times.system
    total = max(passed, 1e-3) * (psutil.cpu_count() or 1)
    return round(min(1.0, max(0.0, (total - idle - own) / total)), 3)


class _Rank:
    """One spawned process and the pipe to it."""

    def __init__(self, number: int, port: int, has_gpu: bool):
        context = mp.get_context("spawn")
        self.number = number
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(number, port, has_gpu, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        self.process.kill()
        self.process.join(END_GRACE)
        self.pipe.close()


@contextmanager
def _ranks(placement: Placement) -> Iterator[list[_Rank]]:
    """The processes, pinned as those of a run; ended whatever happens, and the environment is as it was."""
    before = dict(os.environ)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))
    ranks: list[_Rank] = []
    try:
        pin(placement)
        for number in range(placement.world_size):
            ranks += [_Rank(number, store.port, bool(placement.gpus))]
        yield ranks
    finally:
        for rank in ranks:
            rank.end()
        os.environ.clear()
        os.environ.update(before)


def _ask(ranks: Sequence[_Rank], *message: Any) -> list[Any]:
    """Send the same to all and return their answers in order. Raises CalibrationError."""
    for rank in ranks:
        try:
            rank.pipe.send(message)
        except OSError:
            raise _death(rank) from None
    return [_answer(rank, ranks) for rank in ranks]


def _answer(rank: _Rank, team: Sequence[_Rank]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not rank.pipe.poll():
        left = deadline - time.monotonic()
        if left <= 0:
            raise CalibrationError(f"Rank {rank.number} of the calibration gave no answer for {PATIENCE:.0f} s")
        gone = [other for other in team if not other.process.is_alive()]
        if gone:
            raise _death(gone[0])
        wait([rank.pipe, *(other.process.sentinel for other in team)], left)
    try:
        kind, value = rank.pipe.recv()
    except (EOFError, OSError):
        raise _death(rank) from None
    if kind == "error":
        wait([other.process.sentinel for other in team], BLAME_GRACE)  # what failed here may be that a peer is gone
        gone = [other for other in team if not other.process.is_alive()]
        if gone:
            raise _death(gone[0])
        raise CalibrationError(f"Rank {rank.number} of the calibration failed: {value}")
    return value


def _death(rank: _Rank) -> CalibrationError:
    rank.process.join(END_GRACE)
    code = rank.process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"left with exit code {code}"
    return CalibrationError(f"Rank {rank.number} of the calibration {how}: nothing can be forecast without it")


def _serve(number: int, port: int, has_gpu: bool, pipe: Connection) -> None:
    """Where a spawned rank begins: answer until the parent ends it."""
    for ignored in (signal.SIGINT, signal.SIGHUP):  # the parent ends its ranks
        signal.signal(ignored, signal.SIG_IGN)
    leave_when_parent_dies()
    keep_freed_memory()
    device = torch.device("cuda", number) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=PATIENCE))
    worker = Worker(number, 1, device)
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            leave_now()
        try:
            worker, answer = _obey(worker, store, *message)
        except Exception as error:  # told to the parent, which ends this process
            pipe.send(("error", f"{type(error).__name__}: {error}"[:500]))
        else:
            pipe.send(("done", answer))


def _obey(worker: Worker, store: dist.Store, word: str, *arguments: Any) -> tuple[Worker, Any]:
    """Do what the parent asks for; the worker as it is from then on, and the answer."""
    if word == "join":
        world, threads, backend = arguments
        torch.set_num_threads(threads)
        if world > 1:
            dist.init_process_group(
                backend,
                store=dist.PrefixStore(f"world {world}", store),
                rank=worker.rank,
                world_size=world,
                timeout=timedelta(seconds=PATIENCE),
            )
        return Worker(worker.rank, world, worker.device), None
    if word == "step":
        return worker, probe.time_step(arguments[0], worker, *arguments[1:])
    if word == "exchange":
        return worker, probe.time_exchange(worker, *arguments)
    if word == "precision":
        return worker, probe.precision_name(arguments[0], worker.device)
    assert word == "part"
    if worker.world_size > 1:
        dist.destroy_process_group()
    return Worker(worker.rank, 1, worker.device), None
