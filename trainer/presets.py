"""Named settings to start from, and the command line that gives a configuration. Imports no torch."""

import shlex
from typing import Any

from trainer.config import TrainConfig

PRESETS: dict[str, TrainConfig] = {
    # The article's own settings; its network regains the pooling layer that it forgot.
    "tutorial": TrainConfig(),
    # airbench94's settings (see trainer/fast.py). Its learning rate of 11.5 is one without momentum's gain:
    # 11.5 / (1 + 1 / (1 - 0.85)) = 1.5 here, and its decay of 0.0153 a share of it: 0.0153 / 11.5 = 0.00133.
    "fast": TrainConfig(
        model="fast",
        epochs=10,
        batch_size=1024,
        lr=1.5,
        momentum=0.85,
        nesterov=True,
        weight_decay=0.00133,
        bias_lr=64.0,
        label_smoothing=0.2,
        schedule="triangular",
        warmup=2.3,
        lookahead=5,
        augment="shift_flip",
    ),
    # The baseline of T. DeVries and G. Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout"
    # (arXiv:1708.04552, https://github.com/uoguelph-mlrg/Cutout): ResNet18, crops and flips, 95.28 % on CIFAR-10, the
    # mean of 5 runs.
    "resnet18": TrainConfig(
        model="resnet18",
        epochs=200,
        batch_size=128,
        lr=0.1,
        momentum=0.9,
        nesterov=True,
        weight_decay=5e-4,
        schedule="step",
        augment="crop_flip",
    ),
    # About a minute on two cores, no download: to see everything work once.
    "smoke": TrainConfig(dataset="shapes", epochs=3, lr=0.02, log_every=5),
}

PRESET_NOTES: dict[str, str] = {
    "tutorial": "The article's small network and settings on CIFAR-10.",
    "fast": "The best accuracy for the time: a published recipe of ten epochs, minutes on a CPU.",
    "resnet18": "A recipe of 200 epochs, published with 95.28 % on CIFAR-10. Hours on GPUs, days on a CPU.",
    "smoke": "Generated pictures, about a minute on a laptop, no download.",
}


def closest_preset(config: TrainConfig) -> str:
    """The preset that needs the fewest flags to become `config`."""
    return min(PRESETS, key=lambda name: len(_differences(config, PRESETS[name])))


def _differences(config: TrainConfig, base: TrainConfig) -> dict[str, Any]:
    values, defaults = config.model_dump(), base.model_dump()
    return {name: value for name, value in values.items() if value != defaults[name]}


def to_argv(config: TrainConfig) -> list[str]:
    """The flags of `python -m trainer train` that give exactly this configuration."""
    preset = closest_preset(config)
    argv = ["--preset", preset]
    for name, value in _differences(config, PRESETS[preset]).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            argv += [f"--{flag}={value}"] if str(value).startswith("-") else [f"--{flag}", str(value)]
    return argv


def command_line(config: TrainConfig, python: str = "python") -> str:
    """What to type in a shell to start the same run."""
    return shlex.join([python, "-m", "trainer", "train", *to_argv(config)])
