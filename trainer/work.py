"""The work of one rank, in whatever process it is."""

import os
from pathlib import Path
from typing import Any

import torch

from trainer.allocator import keep_freed_memory
from trainer.config import TrainConfig
from trainer.datasets.prepare import open_prepared
from trainer.devices import cpu_name
from trainer.loop import train
from trainer.models import gradient_sizes, num_parameters
from trainer.outcome import Outcome
from trainer.parallel import Worker
from trainer.placement import Placement
from trainer.pulse import Phase
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.session import Session, begin


def run_rank(
    run: Run, config: TrainConfig, placement: Placement, data_path: Path, record: RankRecord, rank: int
) -> Outcome:
    """The work of one rank in its own process; the process group, if the mode has one, is up already."""
    record.at(Phase.PREPARING)
    torch.set_num_threads(placement.threads)
    keeps_memory = keep_freed_memory()
    device = torch.device("cpu")
    if placement.gpus:
        local = int(os.environ.get("LOCAL_RANK", rank))
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    dp_devices = tuple(range(len(placement.gpus))) if config.parallel == "dp" else ()
    worker = Worker(rank, placement.world_size, device, dp_devices)
    session = begin(config, worker, run, open_prepared(data_path), record)
    session.emit("start", **_start_event(session, placement, keeps_memory))
    record.beat(session.step, Phase.PREPARING)
    return train(session)


def _start_event(session: Session, placement: Placement, keeps_memory: bool) -> dict[str, Any]:
    precision = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[session.autocast]
    gradients = gradient_sizes(session.model)
    largest = max(gradients, key=gradients.__getitem__)
    return {
        "v": 1,
        "run": session.run.id,
        "step": session.step,
        "world_size": placement.world_size,
        "devices": [f"GPU {gpu.index} {gpu.name}" for gpu in placement.gpus] or [cpu_name()],
        "backend": placement.backend,
        "precision": precision,
        "memory_format": "channels_last",
        "threads": placement.threads,
        "allocator": "freed memory kept" if keeps_memory else "system",
        "parameters": num_parameters(session.model),
        "gradient_bytes": sum(gradients.values()),
        "largest_layer": largest,
        "largest_layer_bytes": gradients[largest],
        "total_steps": session.total_steps,
        "steps_per_epoch": session.steps_per_epoch,
        "classes": session.classes,
        "config": session.config.model_dump(),
    }
