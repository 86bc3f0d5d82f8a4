"""Exported weights: one safetensors file with all that is needed to use it. One such file comes with the program.

What is in a file can be asked without torch; a network made of it needs torch.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:
    from trainer.predict import Predictor

SUFFIX = ".safetensors"
PRETRAINED = "pretrained"  # names the file that comes with the program, where a run can be named
PRETRAINED_FILE = Path(__file__).parent / "pretrained" / f"fast{SUFFIX}"


class WeightsError(ValueError):
    """A file of weights that cannot be used; the text is one sentence that names it."""


@dataclass(frozen=True)
class Header:
    """What a file says about its weights. `note` is the words of whoever exported them."""

    model: str
    classes: list[str]
    normalisation: dict[str, list[float]]
    step: int
    note: str


def write_weights(predictor: "Predictor", target: Path, half: bool = False, note: str = "") -> None:
    """Write a network's weights; with `half` in half precision, in half as many bytes.

    Raises OSError, with its name, for the target.
    """
    from safetensors.torch import save

    header = {
        "model": predictor.name,
        "classes": json.dumps(predictor.classes),
        "normalise": json.dumps(predictor.normalisation),
        "step": str(predictor.step),
        "note": note,
    }
    state = predictor.model.state_dict()
    weights = {
        key: (value.half() if half and value.is_floating_point() else value).contiguous()
        for key, value in state.items()
    }
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(save(weights, metadata=header))
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, f"{target} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_header(path: Path) -> Header:
    """What the file says about itself; quick, without torch. Raises WeightsError."""
    if not os.path.isfile(path):
        raise WeightsError(f"there is no file {path}")
    try:
        with safe_open(path, "numpy") as file:
            entries = file.metadata() or {}
    except Exception as error:  # whatever the library makes of a stranger's file
        raise WeightsError(f"{path} is damaged or no safetensors file ({type(error).__name__})") from None
    try:
        normalisation = {key: [float(v) for v in json.loads(entries["normalise"])[key]] for key in ("mean", "std")}
        if any(len(values) != 3 for values in normalisation.values()):
            raise ValueError("three colours")
        classes = [str(name) for name in json.loads(entries["classes"])]
        return Header(entries["model"], classes, normalisation, int(entries["step"]), entries.get("note", ""))
    except Exception as error:
        raise WeightsError(f"{path} was not exported by this program ({type(error).__name__} in its header)") from None


def read_weights(path: Path) -> "Predictor":
    """The network of a file, computing in single precision. Raises WeightsError."""
    from safetensors.torch import load_file

    from trainer.models import MODELS, build_model
    from trainer.predict import Predictor

    header = read_header(path)
    if header.model not in MODELS:
        raise WeightsError(f"{path} holds a network named {header.model!r}, which this program does not know")
    try:
        model = build_model(header.model, len(header.classes))
        model.load_state_dict(load_file(path))
    except Exception as error:
        raise WeightsError(f"{path} does not fit its network ({type(error).__name__})") from None
    return Predictor(model.float().eval(), header.model, header.classes, header.normalisation, header.step, path)
