"""A claimed run becomes processes, and its end a record: in this process, or in ranks spawned from it."""

import os
import sys
import time
import traceback
from contextlib import suppress

from trainer import reserve
from trainer.background import start_waiting
from trainer.blame import Blame, blame_silence
from trainer.causes import cause_of, with_advice
from trainer.config import TrainConfig
from trainer.datasets.prepare import Prepared, prepare
from trainer.events import EventWriter
from trainer.files import remove_leftovers
from trainer.log import say
from trainer.outcome import Outcome
from trainer.placement import Placement
from trainer.pulse import Board, Silence
from trainer.queue import placement_now
from trainer.ranks import RankRecord
from trainer.runs import Run, RunError
from trainer.system import sample_system
from trainer.watcher import guarded, watched


def launch(run: Run, placement: Placement | None = None) -> Outcome:
    """Train a claimed run to its end and write its `end` event. The outcome's status may also be failed."""
    events = EventWriter(run.events_path)
    reserve.take(run.path)
    events.write("progress", text="Preparing the data")
    if events.failure and events.failure.errno not in reserve.NO_ROOM:  # nobody could know how the run ends
        say(f"failed: {events.path} cannot be written: {events.failure.strerror}")
        return Outcome("failed", 0, "events.jsonl cannot be written")
    try:
        outcome = _outcome(run, placement, events)
    finally:
        remove_leftovers(run.path)  # what a rank that died had begun to write
    return outcome


def _outcome(run: Run, placement: Placement | None, events: EventWriter) -> Outcome:
    try:
        with sample_system(run):
            outcome = _train(run, placement, events)
    except KeyboardInterrupt:
        outcome = Outcome("stopped", run.last_step())
    except (Exception, SystemExit) as error:  # the one place where a run's failure becomes its record
        blame = error if isinstance(error, Blame) else _own_failure(run, error)
        if run.is_asked_to_stop and not isinstance(error, ValueError):
            outcome = Outcome("stopped", blame.step)  # it was being stopped: a rank killed meanwhile is no failure
        else:
            write_failure(run, events, blame)
            return Outcome("failed", blame.step, str(blame))
    write_end(run, events, outcome)
    return outcome


def write_end(run: Run, events: EventWriter, outcome: Outcome) -> None:
    run.keep_claim()
    cause = "nonfinite" if outcome.status == "diverged" else None
    facts = {"error": outcome.error or None, "rank": None, "step": outcome.step, "cause": cause}
    reserve.write_end(run.path, events, status=outcome.status, **facts)
    say(f"{outcome.status} at step {outcome.step}{': ' + outcome.error if outcome.error else ''}")


def write_failure(run: Run, events: EventWriter, blame: Blame) -> None:
    run.keep_claim()
    facts = {"error": str(blame), "rank": blame.rank, "step": blame.step, "cause": blame.cause}
    reserve.write_end(run.path, events, status="failed", **facts)
    say(f"failed: {blame}")


def _tell_silence(run: Run, events: EventWriter, silence: Silence) -> None:
    write_failure(run, events, blame_silence(silence))
    with suppress(RunError):
        start_waiting(run.path.parent, leaving=run)


def _train(run: Run, placement: Placement | None, events: EventWriter) -> Outcome:
    config = run.config()
    placement = placement or placement_now(config)
    for text in placement.warnings:
        events.write("warning", text=text)
        say(text)
    prepared = _prepare(run, config, events)
    board = Board(placement.world_size)
    if placement.world_size > 1:
        pin(placement)
        with guarded(board):
            from trainer.spawn import train_in_ranks

            _leave_if_asked(run)
            return train_in_ranks(run, config, placement, prepared.path, board)
    record = RankRecord(run, 0, board)
    with watched(run, board, config.silence_limit, lambda silence: _tell_silence(run, events, silence)):
        try:
            pin(placement)
            from trainer.work import run_rank

            _leave_if_asked(run)
            return run_rank(run, config, placement, prepared.path, record, 0)
        except BaseException as error:
            record.failed(error)
            raise


def _leave_if_asked(run: Run) -> None:
    """Importing torch takes long on a busy machine: whoever asked for a stop meanwhile need not wait for a step."""
    if run.is_asked_to_stop:
        raise KeyboardInterrupt


def _prepare(run: Run, config: TrainConfig, events: EventWriter) -> Prepared:
    """Make the data ready once, before any rank exists. Progress becomes events, at most two a second."""
    last, told = 0.0, ""

    def progress(text: str) -> None:
        nonlocal last, told
        if run.is_asked_to_stop or not run.is_there:
            raise KeyboardInterrupt
        if text != told and time.monotonic() - last >= 0.5:
            last, told = time.monotonic(), text
            events.write("progress", text=text)
            say(text)

    prepared = prepare(config, progress)
    for text in prepared.notes:
        events.write("warning", text=text)
        say(text)
    events.write("progress", text="Starting")
    return prepared


def pin(placement: Placement, is_joined: bool = False) -> None:
    """Show this process and its ranks only their GPUs, in our order, and their share of the cores.

    `is_joined`: torchrun started it, perhaps on several machines.
    """
    os.environ.pop("PYTHONINSPECT", None)  # a rank would wait for a person to type
    os.environ["OMP_NUM_THREADS"] = str(placement.threads)
    if placement.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in placement.gpus)
    if placement.backend == "gloo":  # else gloo looks up the host's name, which may lead nowhere
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        if is_joined:  # over several machines it may have to be another one
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        else:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback
    if os.environ.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":  # torch 2.14 crashes of it over our store
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"


def _own_failure(run: Run, error: BaseException) -> Blame:
    """What failed in this process. A ValueError is a sentence for the user; anything else needs its trace."""
    if isinstance(error, ValueError):
        return Blame(str(error), 0, run.last_step(), cause_of(error))
    say("".join(traceback.format_exception(error)))
    cause = cause_of(error)
    return Blame(with_advice(f"{type(error).__name__}: {error}", cause), 0, run.last_step(), cause)
