"""A run becomes processes: in this process, in ranks spawned from it, or joined to a torchrun group."""

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from trainer.allocator import keep_freed_memory
from trainer.blame import Blame, find_blame
from trainer.config import TrainConfig
from trainer.datasets.prepare import Prepared, open_prepared, prepare
from trainer.devices import cpu_cores, cpu_has_bf16, cpu_name, list_gpus
from trainer.events import EventWriter
from trainer.log import say
from trainer.loop import Outcome, train
from trainer.models import num_parameters
from trainer.parallel import TIMEOUT, Worker
from trainer.placement import Placement, place
from trainer.processes import leave_when_parent_dies
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.session import Session, begin
from trainer.system import sample_system

SPAWN_POLL = 0.2  # seconds
PEER_GRACE = 5  # seconds that the other ranks get to leave after one has died


def launch(run: Run) -> Outcome:
    """Train a claimed run to its end and write its `end` event. The outcome's status may also be failed."""
    events = EventWriter(run.events_path)
    stop = StopOnSignal(run)
    try:
        with stop, sample_system(run):
            outcome = _train(run, events)
    except KeyboardInterrupt:
        outcome = Outcome("stopped", _last_step(run))
    except Exception as error:  # the one place where a run's failure becomes its record
        blame = error if isinstance(error, Blame) else _own_failure(run, error)
        if run.stop_path.exists() and not isinstance(error, ValueError):
            outcome = Outcome("stopped", blame.step)  # it was being stopped: a rank killed meanwhile is no failure
        else:
            events.write("end", status="failed", error=str(blame), rank=blame.rank, step=blame.step)
            say(f"failed: {blame}")
            return Outcome("failed", blame.step, str(blame))
    events.write("end", status=outcome.status, error=outcome.error or None, rank=None, step=outcome.step)
    say(f"{outcome.status} at step {outcome.step}{': ' + outcome.error if outcome.error else ''}")
    return outcome


def _train(run: Run, events: EventWriter) -> Outcome:
    config = run.config()
    placement = place(config, list_gpus(), cpu_cores(), cpu_has_bf16())
    for text in placement.warnings:
        events.write("warning", text=text)
        say(text)
    prepared = _prepare(config, events, run.stop_path)
    pin(placement)
    if placement.world_size > 1:
        return _spawn(run, config, placement, prepared)
    record = RankRecord(run, 0)
    try:
        return run_rank(run, config, placement, prepared.path, record, 0)
    except BaseException as error:
        record.failed(error)
        raise


def _prepare(config: TrainConfig, events: EventWriter, stop_path: Path) -> Prepared:
    """Make the data ready once, before any rank exists. Progress becomes events, at most two a second."""
    last = 0.0

    def progress(text: str) -> None:
        nonlocal last
        if stop_path.exists():
            raise KeyboardInterrupt
        if time.monotonic() - last >= 0.5:
            last = time.monotonic()
            events.write("progress", text=text)
            say(text)

    prepared = prepare(config, progress)
    for text in prepared.notes:
        events.write("warning", text=text)
        say(text)
    events.write("progress", text="Starting")
    return prepared


def pin(placement: Placement) -> None:
    """Show this process and its ranks only their GPUs, in our order, and their share of the cores."""
    os.environ["OMP_NUM_THREADS"] = str(placement.threads)
    if placement.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in placement.gpus)
    if placement.backend == "gloo":  # else gloo looks up the host's name, which may lead nowhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def run_rank(
    run: Run, config: TrainConfig, placement: Placement, data_path: Path, record: RankRecord, rank: int
) -> Outcome:
    """The work of one rank in its own process; the process group, if the mode has one, is up already."""
    torch.set_num_threads(placement.threads)
    keep_freed_memory()
    device = torch.device("cpu")
    if placement.gpus:
        local = int(os.environ.get("LOCAL_RANK", rank))
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    dp_devices = tuple(range(len(placement.gpus))) if config.parallel == "dp" else ()
    worker = Worker(rank, placement.world_size, device, dp_devices)
    session = begin(config, worker, run, open_prepared(data_path), record)
    session.emit("start", **_start_event(session, placement))
    return train(session)


def _start_event(session: Session, placement: Placement) -> dict[str, Any]:
    precision = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[session.autocast]
    return {
        "v": 1,
        "run": session.run.id,
        "step": session.step,
        "world_size": placement.world_size,
        "devices": [f"GPU {gpu.index} {gpu.name}" for gpu in placement.gpus] or [cpu_name()],
        "backend": placement.backend,
        "precision": precision,
        "threads": placement.threads,
        "parameters": num_parameters(session.model),
        "total_steps": session.total_steps,
        "steps_per_epoch": session.steps_per_epoch,
        "classes": session.classes,
        "config": session.config.model_dump(),
    }


def _spawn(run: Run, config: TrainConfig, placement: Placement, prepared: Prepared) -> Outcome:
    """One process a rank. Their meeting point is a store of this process on a port that the kernel chose."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (run.path, config, placement, prepared.path, store.port)
    context = mp.start_processes(_rank_main, arguments, nprocs=placement.world_size, join=False, start_method="spawn")
    assert context is not None
    try:
        while not context.join(timeout=SPAWN_POLL, grace_period=PEER_GRACE):
            pass
    except KeyboardInterrupt:
        for process in context.processes:
            process.kill()
        raise
    except Exception as error:
        raise find_blame(run, error) from error
    outcomes = [record["done"] for record in run.rank_records() if "done" in record]
    if len(outcomes) < placement.world_size:  # exit code 0 alone proves nothing
        raise find_blame(run, None)
    return Outcome(**outcomes[0])


def _rank_main(rank: int, path: Path, config: TrainConfig, placement: Placement, data_path: Path, port: int) -> None:
    """Where a spawned rank begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher turns it into a stop
    leave_when_parent_dies()
    run = Run(path)
    record = RankRecord(run, rank)
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
        dist.init_process_group(
            placement.backend,
            store=dist.PrefixStore(run.id, store),
            rank=rank,
            world_size=placement.world_size,
            timeout=TIMEOUT,
        )
        record.done(vars(run_rank(run, config, placement, data_path, record, rank)))
        dist.destroy_process_group()
    except BaseException as error:
        record.failed(error)
        raise


class StopOnSignal:
    """Turns SIGINT, SIGTERM and SIGHUP into a stop that all ranks agree on; a second one ends the run at once."""

    NUMBERS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self, run: Run):
        self.run = run
        self.before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in self.NUMBERS:
            self.before[number] = signal.signal(number, self._handle)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        if self.run.stop_path.exists():
            raise KeyboardInterrupt
        say("stopping: saving a checkpoint; once more to stop at once")
        self.run.ask_to_stop()


def _last_step(run: Run) -> int:
    return max((record.get("step", 0) for record in run.rank_records()), default=0)


def _own_failure(run: Run, error: Exception) -> Blame:
    if not isinstance(error, ValueError):  # a ValueError is a sentence for the user; anything else needs its trace
        say("".join(traceback.format_exception(error)))
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return Blame(f"{kind}{error}", rank=0, step=_last_step(run))
