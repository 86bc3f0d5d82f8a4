"""What the Predict tab answers: functions of a picture, a network and a checkpoint. Whatever is sent gets words.

`latest` stands for the newest run that has a checkpoint, and for the pretrained network while there is none.
"""

import time
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from trainer.pictures import PictureError, read_picture, to_input
from ui.curves import Curves
from ui.predict_view import answer, gallery, sentence
from ui.predictors import NEWEST, Network, Predictors, choose_network, examples, network_choices

WAITING = ("Looking at the picture", "The first answer takes some seconds: the network is loaded for it.")
NO_PICTURE = ("No picture yet", "Drop or paste a picture at the left, or choose one of the examples.")
NO_PICTURE_PRETRAINED = (NO_PICTURE[0], "Drop or paste a picture at the left.")
STAND_IN = (
    "No run has trained here yet, so the network that comes with the program answers. "
    "Your own run takes its place after its first epoch."
)


class Answers:
    """The handlers of the tab; networks stay loaded between two questions."""

    def __init__(self, curves: Curves, runs_dir: Path):
        self.curves = curves
        self.runs_dir = runs_dir
        self.predictors = Predictors()

    def predict(
        self, picture: str | None, run: str = NEWEST, checkpoint: str = "best", tta: bool = False
    ) -> dict[str, Any]:
        """Classify a picture. `run` is an id, latest or pretrained; `checkpoint` is best or last; `tta` asks six views.

        Returns {label, probability, probabilities: {class: p}, run, checkpoint, tta, step, milliseconds}.
        """
        try:
            return self.ask(picture, run, checkpoint, tta)[1]
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def ask(self, picture: Any, choice: Any, checkpoint: Any, tta: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """(what the network saw, the answer). Raises ValueError with a sentence."""
        network = self._network(choice)
        if network is None:
            raise ValueError(f"There is no run {str(choice)[:64]!r}.")
        if not isinstance(picture, str):
            raise ValueError("A picture is missing.")
        predictor, used = self.predictors.load(network, checkpoint)
        begun = time.perf_counter()
        seen = to_input(read_picture(Path(picture)))
        row = predictor.predict(seen[None], tta is True)[0]
        spent = time.perf_counter() - begun
        probabilities = {name: float(p) for name, p in zip(predictor.classes, row, strict=True)}
        label = max(probabilities, key=lambda name: probabilities[name])
        return seen, {
            "label": label,
            "probability": probabilities[label],
            "probabilities": probabilities,
            "run": network.id,
            "checkpoint": used if network.run else None,
            "tta": tta is True,
            "step": predictor.step,
            "milliseconds": round(1000 * spent, 1),
        }

    def shown(self, picture: Any, choice: Any, checkpoint: Any, tta: Any) -> str:
        """The answer, or what stands in its place, as HTML."""
        network = self._network(choice)
        if picture is None:
            if network is None or network.run:
                return sentence(*NO_PICTURE)
            title, text = NO_PICTURE_PRETRAINED
            return sentence(title, f"{text} {STAND_IN}" if choice == NEWEST else text)
        try:
            seen, found = self.ask(picture, network.id if network else choice, checkpoint, tta)
            name = network.name(self.curves) if network else ""
        except PictureError as error:
            return sentence("This file cannot be used", str(error), is_problem=True)
        except ValueError as error:
            return sentence("No answer", f"{str(error).rstrip('.')}.", is_problem=True)
        return answer(seen, found, name, wished=checkpoint)

    def opened(self, picture: Any, choice: Any, checkpoint: Any, tta: Any) -> list[Any]:
        """[networks, checkpoints, examples, answer] when the tab is opened; an answer that stands is left alone."""
        choice = choice if self._network(choice) else NEWEST
        shown = self.shown(picture, choice, checkpoint, tta) if picture is None else gr.skip()
        return [self.choices(choice), *self.chosen(choice), shown]

    def choices(self, choice: Any) -> Any:
        choices = network_choices(self.curves, self.runs_dir)
        known = {value for _, value in choices}
        return gr.update(choices=choices, value=choice if choice in known else NEWEST)

    def chosen(self, choice: Any) -> list[Any]:
        """[checkpoints, examples] for a network: the pretrained one is a single file."""
        network = self._network(choice)
        return [gr.update(interactive=network is None or network.run is not None), gallery(examples(network))]

    def example(self, choice: Any, event: gr.EventData) -> Any:
        """The picture itself is looked up here: what the browser sends is only its place."""
        found = examples(self._network(choice))
        index = event._data.get("index") if isinstance(event._data, dict) else None
        return found.pictures[index] if type(index) is int and 0 <= index < len(found.pictures) else gr.skip()

    def _network(self, choice: Any) -> Network | None:
        return choose_network(self.curves, self.runs_dir, choice)
