"""Every hyperparameter, declared once.

A field here becomes a widget on the page, a flag on the command line, a key in `config.json` and an argument
of the trainer, all under the same name. This module imports no torch: the page and the command line read it.
"""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

Group = Literal["main", "optimisation", "run", "lesson"]


class ConfigError(ValueError):
    """Settings that cannot be used. `errors` maps each field's name to one sentence about it."""

    def __init__(self, errors: Mapping[str, str]):
        self.errors = dict(errors)
        super().__init__("; ".join(f"{field}: {text}" for field, text in self.errors.items()))


def _option(default: Any, title: str, description: str, group: Group, **bounds: Any) -> Any:
    return Field(default, title=title, description=description, json_schema_extra={"group": group}, **bounds)


class TrainConfig(BaseModel):
    """The settings of one run. Frozen; unknown keys, NaN and wrong types are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        str_strip_whitespace=True,
    )

    dataset: Literal["cifar10", "images", "shapes"] = _option(
        "cifar10",
        "Data set",
        "cifar10: downloaded once (170 MB). images: your own folder or archive. shapes: generated, works offline.",
        "main",
    )
    data_dir: Annotated[str, Field(min_length=1, max_length=4096)] = _option(
        "data",
        "Data path",
        "cifar10: the folder that holds or receives the download. images: a folder, .zip or .tar.gz with "
        "train/<class>/picture.png and, if there is one, test/<class>/picture.png. shapes: not used.",
        "run",
    )
    model: Literal["tutorial", "fast", "resnet9", "resnet18"] = _option(
        "tutorial",
        "Network",
        "tutorial: two convolutions, 8.5 M parameters. fast: 2.0 M, learns in the fewest epochs. resnet9: 6.6 M. "
        "resnet18: 11.2 M, the slowest.",
        "main",
    )
    parallel: Literal["single", "dp", "ddp"] = _option(
        "single",
        "Parallel mode",
        "single: one device. dp: nn.DataParallel, one process drives all GPUs. "
        "ddp: DistributedDataParallel, one process for each GPU (or several on the CPU).",
        "main",
    )
    devices: Annotated[str, Field(max_length=200)] = _option(
        "auto",
        "Devices",
        "auto: every GPU the mode can use, the CPU if there is none. cpu, or GPU numbers as in 0,2.",
        "main",
    )
    processes: int = _option(0, "Processes", "ddp ranks. 0: one for each GPU, 2 on the CPU.", "main", ge=0, le=64)
    epochs: int = _option(10, "Epochs", "Passes over the training pictures.", "main", ge=1, le=10_000)
    batch_size: int = _option(
        128,
        "Batch size",
        "Pictures in one step over all devices together: changing the mode does not change the training.",
        "main",
        ge=1,
        le=65_536,
    )
    lr: float = _option(
        0.01,
        "Learning rate",
        "The peak of the schedule. If the loss turns into NaN, lower it; never scaled behind your back.",
        "main",
        gt=0,
        le=1e6,
    )
    optimizer: Literal["sgd", "adamw"] = _option(
        "sgd", "Optimizer", "sgd with momentum, or adamw (try a learning rate near 0.001).", "optimisation"
    )
    momentum: float = _option(0.9, "Momentum", "For sgd. 0: none.", "optimisation", ge=0, lt=1)
    nesterov: bool = _option(False, "Nesterov momentum", "For sgd: look one momentum step ahead.", "optimisation")
    bias_lr: float = _option(
        1.0,
        "BatchNorm bias rate",
        "The biases of BatchNorm learn this many times as fast. 64 in the recipe of the preset fast.",
        "optimisation",
        gt=0,
        le=1e4,
    )
    weight_decay: float = _option(
        5e-4, "Weight decay", "Pulls the weights towards zero. 0: none.", "optimisation", ge=0, le=1
    )
    label_smoothing: float = _option(
        0.0,
        "Label smoothing",
        "Share of each label spread over all classes; 0.1 to 0.2 is usual.",
        "optimisation",
        ge=0,
        lt=1,
    )
    grad_clip: float = _option(
        0.0, "Gradient clipping", "Largest gradient norm. 0: no limit.", "optimisation", ge=0, le=1e6
    )
    schedule: Literal["constant", "cosine", "triangular", "step"] = _option(
        "constant",
        "Schedule",
        "How the learning rate falls after the warm-up: not at all, along a cosine, in a straight line, "
        "or to a fifth at 30, 60 and 80 % of the run.",
        "optimisation",
    )
    warmup: float = _option(
        0.0, "Warm-up", "Epochs in which the learning rate rises from 0.", "optimisation", ge=0, le=10_000
    )
    lookahead: int = _option(
        0,
        "Lookahead",
        "Steps after which the weights are pulled to their moving average. 0: never.",
        "optimisation",
        ge=0,
        le=10_000,
    )
    augment: Literal["none", "crop_flip", "crop_flip_cutout", "shift_flip"] = _option(
        "crop_flip",
        "Augmentation",
        "crop_flip: shift by up to 4 pixels, mirror half of the pictures. cutout: also blank an 8x8 square. "
        "shift_flip: shift by up to 2 pixels, mirror each picture in every other epoch.",
        "optimisation",
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _option(
        "auto",
        "Precision",
        "auto: bf16 where the device is fast at it, otherwise fp16 on a GPU, fp32 on the CPU.",
        "run",
    )
    compile: bool = _option(False, "torch.compile", "GPU only: a slow start, then faster steps. For long runs.", "run")
    seed: int = _option(
        0, "Seed", "Same seed, mode and machine: the same run, bit for bit on the CPU.", "run", ge=0, lt=2**31
    )
    max_steps: int = _option(0, "Step limit", "Stop after this many steps. 0: no limit.", "run", ge=0, le=1_000_000_000)
    anatomy: bool = _option(True, "Look inside steps", "Measure where the time of each step goes, on each rank.", "run")
    log_every: int = _option(10, "Log every", "Steps between two points of the chart.", "run", ge=1, le=10_000)
    eval_every: int = _option(
        1, "Evaluate every", "Epochs between two passes over the test pictures.", "run", ge=1, le=10_000
    )
    patience: int = _option(
        0,
        "Patience",
        "Stop after this many evaluations without a better accuracy. 0: never.",
        "run",
        ge=0,
        le=10_000,
    )
    target_accuracy: float = _option(
        0.0,
        "Target accuracy",
        "Stop as soon as the test accuracy reaches this share: 0.94 is 94 %. 0: never.",
        "run",
        ge=0,
        le=1,
    )
    silence_limit: int = _option(
        120,
        "Silence limit",
        "Seconds without any progress after which a rank counts as hung and the run ends. Raise it if one step takes "
        "longer than this.",
        "run",
        ge=1,
        le=86_400,
    )
    slow_ms: int = _option(
        0,
        "Late rank (ms)",
        "The last rank's pictures come so many milliseconds late in each step, and the others wait for it. 0: off.",
        "lesson",
        ge=0,
        le=10_000,
    )
    bucket_mb: int = _option(
        0,
        "Bucket (MB)",
        "ddp: gradients that travel together. Small ones leave earlier, while backward goes on, and each costs a "
        "message. 0: PyTorch's own, 25.",
        "lesson",
        ge=0,
        le=1024,
    )
    threads: int = _option(
        0, "Threads", "CPU threads of each process. 0: the cores, shared fairly.", "lesson", ge=0, le=1024
    )
    label: Annotated[str, Field(max_length=64)] = _option("", "Name", "Your own words for this run.", "run")

    @field_validator("data_dir", "label")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("holds characters that cannot be shown")
        return value

    @field_validator("devices")
    @classmethod
    def _device_list(cls, value: str) -> str:
        if value in ("auto", "cpu"):
            return value
        numbers = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in numbers):
            raise ValueError("must be auto, cpu, or GPU numbers with commas between them, as in 0,2")
        if len(set(map(int, numbers))) < len(numbers):
            raise ValueError("names a GPU twice")
        return ",".join(str(int(part)) for part in numbers)

    @field_validator("nesterov")
    @classmethod
    def _nesterov_has_momentum(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("optimizer") == "sgd" and info.data.get("momentum") == 0:
            raise ValueError("needs a momentum above 0")
        return value

    @field_validator("warmup")
    @classmethod
    def _warmup_fits(cls, value: float, info: ValidationInfo) -> float:
        epochs = info.data.get("epochs")
        if epochs is not None and value > epochs:
            raise ValueError(f"is longer than the run, which has epochs = {epochs}")
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "TrainConfig":
        """Check `values`, which may come from anywhere. Raises ConfigError with all problems at once."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise config_error(error) from None

    @classmethod
    def from_json(cls, text: str) -> "TrainConfig":
        """Raises ConfigError if `text` is not one JSON object with valid settings."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError({"config": f"is not JSON ({error})"}) from None
        if not isinstance(values, dict):
            raise ConfigError({"config": "is not a JSON object"})
        return cls.parse(values)

    def anchored(self) -> "TrainConfig":
        """With a data path that means the same in every working directory. Raises ConfigError if that is too long."""
        if self.dataset == "shapes" or self.data_dir.startswith("~"):
            return self
        return self.changed(data_dir=os.path.abspath(self.data_dir))

    def changed(self, **values: Any) -> "TrainConfig":
        """A copy with some fields replaced, checked again. Raises ConfigError."""
        return self.parse({**self.model_dump(), **values})


def choices(field: str) -> tuple[str, ...]:
    """The values that a field of fixed choices can take; empty for any other field."""
    annotation = TrainConfig.model_fields[field].annotation
    return get_args(annotation) if getattr(annotation, "__origin__", None) is Literal else ()


def group(field: str) -> Group:
    """Which part of the form a field belongs to."""
    extra = TrainConfig.model_fields[field].json_schema_extra
    assert isinstance(extra, dict)
    return extra["group"]  # type: ignore[return-value]


_RULES = {
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "finite_number": "must be a finite number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
}


def config_error(error: ValidationError) -> ConfigError:
    """pydantic's report in the words of the fields: value, rule, field."""
    errors: dict[str, str] = {}
    for item in error.errors():
        field = str(item["loc"][0])[:64] if item["loc"] else "config"
        errors.setdefault(field, _in_words(item))
    return ConfigError(errors)


def _in_words(item: ErrorDetails) -> str:
    if item["type"] == "extra_forbidden":
        return "is not a setting"
    value = item["input"]
    shown = "nothing" if value is None else value if isinstance(value, str) and value else repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    context = item.get("ctx", {})
    if item["type"] == "value_error":
        return f"{shown} {context['error']}"
    rule = _RULES.get(item["type"])
    return f"{shown} {rule.format(**context)}" if rule else f"{shown}: {item['msg']}"
