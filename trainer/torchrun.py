"""Joining a group that torchrun started: `torchrun --nproc-per-node=2 -m -- trainer train --run DIR`."""

import os
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from trainer.blame import find_blame
from trainer.config import ConfigError
from trainer.datasets.prepare import prepare
from trainer.devices import cpu_cores, cpu_has_bf16, list_gpus
from trainer.events import EventWriter
from trainer.launch import pin
from trainer.log import say
from trainer.outcome import Outcome
from trainer.placement import Placement, place
from trainer.processes import leave_when_parent_dies
from trainer.queue import devices_of, locked
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.signals import StopOnSignal
from trainer.work import run_rank


def join_group(run: Run) -> Outcome:
    """Train as the rank that the environment names. Rank 0 claims the run and writes its events.

    Raises ConfigError if the run is not ddp or its batch cannot be shared by the group.
    """
    rank = int(os.environ["RANK"])
    config = run.config()
    if config.parallel != "ddp":
        raise ConfigError({"parallel": f"torchrun starts ddp runs, and this one is {config.parallel}"})
    placement = _placement(run)
    if rank == 0:
        with locked(run.path.parent):
            if run.has_claim and not run.state().status.living:  # it has ended, or torchrun starts its workers again
                run.requeue()
            run.claim(devices_of(placement))
        say(str(run.path))
    pin(placement)
    leave_when_parent_dies()  # torchrun's agent: its workers are sessions of their own
    record = RankRecord(run, rank)
    events = EventWriter(run.events_path) if rank == 0 else None
    with StopOnSignal(run):
        try:
            prepared = prepare(config, lambda text: None)
            dist.init_process_group(placement.backend, timeout=timedelta(seconds=config.silence_limit))
            outcome = run_rank(run, config, placement, prepared.path, record, rank)
            record.done(vars(outcome))
            dist.destroy_process_group()
        except Exception as error:
            record.failed(error)
            if events:
                blame = find_blame(run.rank_records(), error)
                facts = {"rank": blame.rank, "step": blame.step, "cause": blame.cause}
                events.write("end", status="failed", error=str(blame), **facts)
            raise
    if events:
        events.write(
            "end", status=outcome.status, error=outcome.error or None, rank=None, step=outcome.step, cause=None
        )
    return outcome


def _placement(run: Run) -> Placement:
    """As for a spawned run, with the ranks of this machine; then for the whole group."""
    world_size, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    config = run.config()
    if config.batch_size % world_size:
        raise ConfigError({"batch_size": f"{config.batch_size} cannot be shared equally by {world_size} ranks"})
    here = place(config.changed(processes=local), list_gpus(), cpu_cores(), cpu_has_bf16())
    return replace(here, world_size=world_size, per_device_batch=config.batch_size // world_size)
