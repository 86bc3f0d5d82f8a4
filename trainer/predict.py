"""What a trained network makes of pictures. Runs on the CPU, so it never takes memory from a run on the GPUs."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.config import TrainConfig
from trainer.data import EVAL_BATCH, normalise, to_tensor
from trainer.datasets.prepare import prepare
from trainer.models import MODELS, build_model
from trainer.pictures import PictureError, read_picture, to_input
from trainer.run_list import open_run
from trainer.runs import CHECKPOINTS, Run
from trainer.views import six_views
from trainer.weights import PRETRAINED, PRETRAINED_FILE, SUFFIX, read_weights


@dataclass(frozen=True)
class Predictor:
    """A network with the pre-processing that it was trained with."""

    model: nn.Module
    name: str  # of the network, one of trainer.models.MODELS
    classes: list[str]
    normalisation: dict[str, list[float]]
    step: int
    file: Path  # where it was read from

    @torch.inference_mode()
    def logits(self, pictures: np.ndarray, tta: bool = False) -> torch.Tensor:
        """(n, 32, 32, 3) uint8 -> (n, num_classes) float64; with `tta` the mean over six views of each picture."""
        parts = [normalise(part, **self.normalisation) for part in to_tensor(pictures).split(EVAL_BATCH)]
        return torch.cat([(six_views(self.model, part) if tta else self.model(part)).double() for part in parts])

    def predict(self, pictures: np.ndarray, tta: bool = False) -> np.ndarray:
        """(n, 32, 32, 3) uint8 -> (n, num_classes) probabilities, float64; each row adds up to 1."""
        return self.logits(pictures, tta).softmax(1).numpy()


def find_predictor(runs_dir: Path, reference: str, name: str = "best") -> tuple[Predictor, Run | None]:
    """The network that a run's id or path, `latest`, `pretrained` or an exported file names, and its run if it has one.

    Raises RunError if nothing has that name; CheckpointError or WeightsError if it cannot be used.
    """
    if reference == PRETRAINED:
        return read_weights(PRETRAINED_FILE), None
    if reference.endswith(SUFFIX):
        return read_weights(Path(reference)), None
    run = open_run(runs_dir, reference)
    return load_predictor(run, name), run


def load_predictor(run: Run, name: str = "best") -> Predictor:
    """The network of a run's checkpoint `best`, `last` or `previous`, verified.

    Raises CheckpointError, a ValueError with one sentence, which names another checkpoint of the run if one loads.
    """
    try:
        return _predictor(run, name)
    except CheckpointError as error:
        other = next((other for other in CHECKPOINTS if other != name and _loads(run, other)), None)
        if other is None:
            raise
        file = run.checkpoint_path(other).name
        raise CheckpointError(f"{error}; {file} of this run can be used: choose it with --checkpoint {other}") from None


def _loads(run: Run, name: str) -> bool:
    try:
        return bool(_predictor(run, name))
    except CheckpointError:
        return False


def _predictor(run: Run, name: str) -> Predictor:
    path = run.checkpoint_path(name)
    if not os.path.lexists(path):
        when = "the second" if name == "previous" else "the first"
        raise CheckpointError(f"{run.id} has no {path.name} yet: it is written after {when} epoch")
    state = checkpoint.load(path)
    try:
        model_name, classes = state["config"]["model"], [str(c) for c in state["classes"]]
        if model_name not in MODELS:
            raise CheckpointError(f"{path} holds a network named {model_name!r}, which this program does not know")
        model = build_model(model_name, len(classes))
        model.load_state_dict(state["model"])
        normalisation = {key: [float(v) for v in state["normalise"][key]] for key in ("mean", "std")}
        if any(len(values) != 3 for values in normalisation.values()):
            raise ValueError("three colours")
    except CheckpointError:
        raise
    except Exception as error:  # what does not fit raises nearly anything
        raise CheckpointError(f"{path} does not fit its network ({type(error).__name__})") from None
    return Predictor(model.float().eval(), model_name, classes, normalisation, int(state["step"]), path)


def predict_files(predictor: Predictor, files: Sequence[Path], tta: bool = False) -> list[dict[str, Any]]:
    """One entry a file, in their order: {file, label, probability, probabilities: {class: p}, error}.

    Where a picture cannot be read, `error` is the sentence and the others are None.
    """
    results = []
    for file in files:
        entry: dict[str, Any] = dict.fromkeys(("file", "label", "probability", "probabilities", "error"))
        entry["file"] = str(file)
        try:
            row = predictor.predict(to_input(read_picture(file))[None], tta)[0]
        except PictureError as error:
            entry["error"] = str(error)
        else:
            entry["label"] = predictor.classes[int(row.argmax())]
            entry["probability"] = float(row.max())
            entry["probabilities"] = dict(zip(predictor.classes, row.tolist(), strict=True))
        results.append(entry)
    return results


def evaluate(predictor: Predictor, config: TrainConfig, tta: bool = False) -> dict[str, Any]:
    """Count a network's answers on all test pictures of the data set that `config` names.

    Returns {checkpoint, step, tta, loss, accuracy, correct, count, per_class: {class: accuracy}, answers: [class index
    for each test picture, in the data set's order]}. Raises CheckpointError or DataError.
    """
    prepared = prepare(config, lambda text: None)
    if list(prepared.classes) != predictor.classes:
        raise CheckpointError(
            f"{predictor.file} was trained on other classes than the data set {config.dataset} has now"
        )
    logits = predictor.logits(prepared.test_images, tta)
    labels = to_tensor(prepared.test_labels)
    answers = logits.argmax(1)
    right = answers == labels
    return {
        "checkpoint": predictor.file.name,
        "step": predictor.step,
        "tta": tta,
        "loss": nn.functional.cross_entropy(logits, labels).item(),
        "accuracy": right.double().mean().item(),
        "correct": int(right.sum()),
        "count": len(labels),
        "per_class": {
            label: right[labels == index].double().mean().item() if bool((labels == index).any()) else None
            for index, label in enumerate(predictor.classes)
        },
        "answers": answers.tolist(),
    }
