"""What the settings mean on this machine, in sentences: shares, steps, ranks, the learning rate in force."""

import math
import shlex
import sys
from html import escape
from pathlib import Path
from typing import Protocol

from trainer.background import ROOT
from trainer.config import ConfigError, TrainConfig
from trainer.placement import Placement
from trainer.presets import command_line
from ui.form import title


class Sizes(Protocol):
    """How many pictures a data set holds."""

    @property
    def num_train(self) -> int: ...


def sharing(config: TrainConfig, placement: Placement) -> str:
    """Per-device batch x devices = global batch."""
    sharers = placement.world_size if config.parallel == "ddp" else placement.num_devices
    total = f"<b>{config.batch_size:,}</b> pictures a step"
    if sharers == 1:
        return f"{total}, all on one device"
    noun = "ranks" if config.parallel == "ddp" else "GPUs"
    return f"{placement.per_device_batch:,} x {sharers} {noun} = {total}"


def length(config: TrainConfig, sizes: Sizes | None) -> str:
    """Steps an epoch and in all. The last, smaller batch of an epoch counts."""
    if sizes is None:
        return "Steps an epoch: known after the first start"
    an_epoch = math.ceil(sizes.num_train / config.batch_size)
    total = an_epoch * config.epochs
    limited = f", stopped at {config.max_steps:,}" if 0 < config.max_steps < total else ""
    return f"{an_epoch:,} steps an epoch, {total:,} in all{limited}"


def processes(config: TrainConfig, placement: Placement) -> str:
    """Who works: devices, ranks, backend, threads."""
    where = _devices(placement)
    threads = "" if placement.gpus else f", {_count(placement.threads, 'thread')}"
    if config.parallel == "ddp":
        each = " each" if threads and placement.world_size > 1 else ""
        return f"{_count(placement.world_size, 'rank')} on {where} over {placement.backend}{threads}{each}"
    kind = "nn.DataParallel" if config.parallel == "dp" else "One process"
    return f"{kind} on {where}{threads}"


def numbers(config: TrainConfig, placement: Placement, has_bf16: bool) -> str:
    """The number format that will be used."""
    if config.precision != "auto":
        return config.precision
    if placement.gpus:
        return "bf16 if the GPU is fast at it, else fp16"
    return "bf16" if has_bf16 else "fp32"


def learning_rate(config: TrainConfig) -> str:
    """The learning rate in force; the mode never changes it."""
    falls = {
        "constant": "constant",
        "cosine": "down to 0 along a cosine",
        "triangular": "down to 0 in a straight line",
        "step": "a fifth at 30, 60 and 80 %",
    }[config.schedule]
    rise = f"up over {config.warmup:g} epochs, then " if config.warmup else ""
    return f"Learning rate {config.lr:g}, {rise}{falls}"


def explain(config: TrainConfig, placement: Placement, sizes: Sizes | None, has_bf16: bool) -> str:
    """HTML: the facts, then one line for each setting that has no effect or a surprising one here."""
    facts = [
        f"{sharing(config, placement)}. {length(config, sizes)}.",
        f"{escape(processes(config, placement))}. Precision: {numbers(config, placement, has_bf16)}.",
        f"{learning_rate(config)}; the mode does not change it.",
    ]
    lines = [f"<li>{fact}</li>" for fact in facts]
    lines += [f"<li class='note'>{escape(warning)}</li>" for warning in placement.warnings]
    return f"<ul class='meaning'>{''.join(lines)}</ul>"


def refusal(error: ConfigError) -> str:
    """HTML: why these settings cannot be started, all reasons at once."""
    lines = [f"<li><b>{escape(title(field))}</b>: {escape(text)}</li>" for field, text in error.errors.items()]
    return f"<ul class='meaning refused' role='alert'>{''.join(lines)}</ul>"


def shell(config: TrainConfig, runs_dir: Path) -> str:
    """The command that starts the same run, so that this page shows it too."""
    return command_line(config, python()) + runs_flag(runs_dir)


def python() -> str:
    """The interpreter to type in the directory of this program: the one that has what is needed."""
    own = Path(sys.executable)
    return str(own.relative_to(ROOT)) if own.is_relative_to(ROOT) else "python"


def runs_flag(runs_dir: Path) -> str:
    """What a command needs to find these runs when it is typed in the directory of this program."""
    return "" if runs_dir == ROOT / "runs" else f" --runs-dir {shlex.quote(str(runs_dir))}"


def _devices(placement: Placement) -> str:
    if not placement.gpus:
        return "the CPU"
    numbers = ", ".join(str(gpu.index) for gpu in placement.gpus)
    return f"GPU{'s' if len(placement.gpus) > 1 else ''} {numbers}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
