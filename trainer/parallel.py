"""What differs between single, dp and ddp: where a process stands, and what its peers must agree on."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Worker:
    """One process of a run."""

    rank: int
    world_size: int
    device: torch.device
    dp_devices: tuple[int, ...] = ()  # the CUDA devices that nn.DataParallel drives

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def wrap(model: nn.Module, worker: Worker) -> nn.Module:
    """The module whose forward and backward serve the mode; `model` itself stays what is saved and evaluated."""
    if worker.world_size > 1:
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[worker.device.index] if worker.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            static_graph=True,
        )
    if len(worker.dp_devices) > 1:
        return nn.DataParallel(model, device_ids=list(worker.dp_devices))
    return model


def reduce_sum(values: Tensor, worker: Worker) -> list[float]:
    """Element-wise sum of a float64 vector over all ranks, the same numbers on each. Waits for the device."""
    if worker.world_size > 1:
        dist.all_reduce(values)
    return values.tolist()


def share_buffers(model: nn.Module, worker: Worker) -> None:
    """Give every rank the buffers of rank 0 (BatchNorm's running statistics), which are the ones that are saved."""
    if worker.world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
