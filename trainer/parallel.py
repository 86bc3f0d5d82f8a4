"""What differs between single, dp and ddp: where a process stands, and what its peers must agree on."""

import zlib
from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.step_clock import NoClock, StepClock, TimedDataParallel, average_gradients


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


class DriftError(RuntimeError):
    """This rank's weights are not those of the others: the same updates from the same start cannot bring that about."""


def wrap(model: nn.Module, worker: Worker, clock: NoClock, bucket_mb: int = 0) -> nn.Module:
    """The module whose forward and backward serve the mode; `model` itself stays what is saved and evaluated.

    A `StepClock` is told how the gradients travel. bucket_mb: megabytes of gradients that DDP sends together; 0: its
    own choice, a first one of 1 and all others of 25.
    """
    if worker.world_size > 1:
        net = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[worker.device.index] if worker.device.type == "cuda" else None,
            bucket_cap_mb=bucket_mb or None,
            gradient_as_bucket_view=True,
            static_graph=True,
        )
        if isinstance(clock, StepClock):
            net.register_comm_hook(clock, average_gradients)
        return net
    if len(worker.dp_devices) > 1:
        devices = list(worker.dp_devices)
        if isinstance(clock, StepClock):
            return TimedDataParallel(model, devices, clock)
        return nn.DataParallel(model, device_ids=devices)
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


def weights_checksum(model: nn.Module) -> int:
    """CRC-32 of the bytes of all parameters."""
    checksum = 0
    for parameter in model.parameters():
        flat = parameter.detach().cpu().reshape(-1)
        checksum = zlib.crc32(flat.view(torch.uint8).numpy().tobytes(), checksum)
    return checksum


def check_same_weights(model: nn.Module, worker: Worker) -> str | None:
    """The checksum of the weights that all ranks hold, as 8 hex digits; None where there is one process.

    Raises DriftError on the ranks, and only there, whose weights are not those of most; with no majority, not those
    of rank 0. The others go on and lose a peer, so that the blame is on the one that drifted.
    """
    if worker.world_size == 1:
        return None
    own = torch.tensor([weights_checksum(model)], dtype=torch.int64, device=worker.device)
    gathered = [torch.empty_like(own) for _ in range(worker.world_size)]
    dist.all_gather(gathered, own)
    checksums = [int(value) for value in gathered]
    most, count = Counter(checksums).most_common(1)[0]
    is_majority = count > worker.world_size / 2
    right = most if is_majority else checksums[0]
    if checksums[worker.rank] != right:
        whose = "the other ranks" if is_majority and worker.world_size > 2 else "rank 0"
        raise DriftError(f"its weights are not those of {whose}")
    return f"{right:08x}"
