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
from trainer.launch import pin, write_end, write_failure
from trainer.log import say
from trainer.outcome import Outcome
from trainer.placement import Placement, place
from trainer.processes import identity, leave_when_parent_dies
from trainer.queue import claim_at_once
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
        claim_at_once(run, placement)  # also when torchrun starts its workers again after one has failed
        say(str(run.path))
    pin(placement, is_joined=True)
    leave_when_parent_dies()  # torchrun's agent: its workers are sessions of their own
    record = RankRecord(run, rank, agent=identity(os.getppid()))
    events = EventWriter(run.events_path) if rank == 0 else None
    with StopOnSignal(run):
        try:
            prepared = prepare(config, lambda text: _look_for_stop(run))
            dist.init_process_group(placement.backend, timeout=timedelta(seconds=config.silence_limit))
            outcome = run_rank(run, config, placement, prepared.path, record, rank)
            record.done(vars(outcome))
            dist.destroy_process_group()
        except KeyboardInterrupt:
            outcome = Outcome("stopped", record.values["step"])
        except Exception as error:
            record.failed(error)
            if events:
                write_failure(run, events, find_blame(run.rank_records(), error))
            raise
    if events:
        write_end(run, events, outcome)
    return outcome


def _look_for_stop(run: Run) -> None:
    if run.is_asked_to_stop:
        raise KeyboardInterrupt


def _placement(run: Run) -> Placement:
    """As for a spawned run, with the ranks of this machine; then for the whole group."""
    world_size, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    config = run.config()
    if config.batch_size % world_size:
        raise ConfigError({"batch_size": f"{config.batch_size} cannot be shared equally by {world_size} ranks"})
    here = place(config.changed(processes=local), list_gpus(), cpu_cores(), cpu_has_bf16())
    return replace(here, world_size=world_size, per_device_batch=config.batch_size // world_size)
