"""Which processes run on which devices, decided and checked before anything starts. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu

DEFAULT_CPU_RANKS = 2


@dataclass(frozen=True)
class Placement:
    """`gpus` is empty on the CPU. One process drives all GPUs in dp; in ddp rank r drives gpus[r]."""

    gpus: tuple[Gpu, ...]
    world_size: int
    backend: str  # "nccl", "gloo", or "" where there is one process and no group
    threads: int  # CPU threads of each process
    per_device_batch: int
    warnings: tuple[str, ...]

    @property
    def device_type(self) -> str:
        return "cuda" if self.gpus else "cpu"

    @property
    def num_devices(self) -> int:
        return len(self.gpus) if self.gpus else 1


def place(config: TrainConfig, gpus: Sequence[Gpu], cores: int, has_bf16: bool) -> Placement:
    """Resolve `devices` and `processes` on a machine with these GPUs and cores.

    Raises ConfigError, naming the field, for a device that is not there, more processes than devices, or a batch
    that cannot be shared out. A setting without effect on this machine becomes a sentence in `warnings`.
    """
    chosen = _choose(config, gpus)
    world_size = 1
    if config.parallel == "ddp":
        world_size = config.processes or len(chosen) or DEFAULT_CPU_RANKS
        if chosen and world_size > len(chosen):
            raise ConfigError(
                {"processes": f"{world_size} are more than the {len(chosen)} GPUs chosen: one rank needs one GPU"}
            )
        chosen = chosen[:world_size]
    sharers = world_size if config.parallel == "ddp" else max(1, len(chosen))
    _check_divisible(config.batch_size, sharers)
    return Placement(
        gpus=tuple(chosen),
        world_size=world_size,
        backend="" if config.parallel != "ddp" else "nccl" if chosen else "gloo",
        threads=config.threads or max(1, cores // world_size),
        per_device_batch=config.batch_size // sharers,
        warnings=tuple(_without_effect(config, chosen, world_size, cores, has_bf16)),
    )


def _choose(config: TrainConfig, gpus: Sequence[Gpu]) -> list[Gpu]:
    if config.devices == "cpu":
        return []
    if config.devices == "auto":
        return list(gpus[:1] if config.parallel == "single" else gpus)
    by_index = {gpu.index: gpu for gpu in gpus}
    wanted = [int(number) for number in config.devices.split(",")]
    missing = [number for number in wanted if number not in by_index]
    if missing:
        have = f"this machine has {', '.join(map(str, by_index))}" if by_index else "this machine shows no GPU"
        raise ConfigError({"devices": f"there is no GPU {missing[0]}: {have}"})
    if config.parallel == "single" and len(wanted) > 1:
        raise ConfigError({"devices": f"{config.devices} names {len(wanted)} GPUs, and single trains on one"})
    return [by_index[number] for number in wanted]


def _check_divisible(batch_size: int, sharers: int) -> None:
    if batch_size % sharers == 0:
        return
    below, above = batch_size // sharers * sharers, (batch_size // sharers + 1) * sharers
    nearest = f"{below} or {above}" if below else f"{above}"
    raise ConfigError(
        {"batch_size": f"{batch_size} cannot be shared equally by {sharers} devices; the nearest is {nearest}"}
    )


def _without_effect(config: TrainConfig, gpus: Sequence[Gpu], world_size: int, cores: int, has_bf16: bool):
    if config.parallel == "dp" and not gpus:
        yield "No GPU here: nn.DataParallel passes everything through and trains as one device."
    if config.parallel == "dp" and len(gpus) == 1:
        yield "nn.DataParallel on one GPU passes everything through: the same as single."
    if config.parallel != "ddp" and config.processes > 1:
        yield f"processes = {config.processes} has no effect: {config.parallel} is one process."
    if config.parallel == "ddp" and not gpus and world_size > 1:
        yield (
            f"{world_size} ranks share the {cores} cores of the CPU over gloo: this shows how ddp works, "
            "and is not faster than one process."
        )
    if config.parallel == "ddp" and world_size == 1:
        yield "ddp with one rank: nothing is exchanged."
    if not gpus and config.precision == "bf16" and not has_bf16:
        yield "This processor has no bf16 arithmetic: training in fp32."
    if not gpus and config.precision == "fp16":
        yield "fp16 needs a GPU: training in fp32."
    if not gpus and config.compile:
        yield "torch.compile is used on GPUs only: on a CPU it is slower for these networks."
    if config.model != "tutorial" and (world_size > 1 or (config.parallel == "dp" and len(gpus) > 1)):
        yield ("BatchNorm sees each device's share of the batch, so the result differs a little from one device.")
    if config.model == "tutorial" and config.bias_lr != 1:
        yield f"bias_lr = {config.bias_lr:g} has no effect: the network has no BatchNorm."
    yield from _lessons(config, world_size, cores)
    if config.optimizer == "adamw" and config.nesterov:
        yield "nesterov has no effect on adamw."


def _lessons(config: TrainConfig, world_size: int, cores: int):
    """What was slowed down on purpose is said, so that nobody takes it for the machine's fault."""
    if config.slow_ms:
        whose = f"rank {world_size - 1}" if world_size > 1 else "the only process"
        yield f"Lesson: the pictures of {whose} come {config.slow_ms} ms late in each step (slow_ms)."
    if config.threads:
        fair = max(1, cores // world_size)
        yield f"Lesson: {config.threads} CPU threads in each process (threads); shared fairly there would be {fair}."
    if config.bucket_mb and world_size > 1:
        yield f"Lesson: gradients travel in buckets of {config.bucket_mb} MB (bucket_mb); PyTorch's own are of 25 MB."
    elif config.bucket_mb:
        yield f"bucket_mb = {config.bucket_mb} has no effect: one process exchanges nothing."
