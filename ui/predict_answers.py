"""What the Predict tab answers: functions of a picture, a run and a checkpoint. Whatever is sent gets words.

`latest` stands for the newest run that has a checkpoint.
"""

import time
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from trainer.pictures import PictureError, read_picture, to_input
from ui.curves import Curves
from ui.predict_view import answer, gallery, sentence
from ui.predictors import NEWEST, Predictors, choose_run, examples, run_choices

NO_RUN = (
    "There is no trained network yet",
    "Train one first: on the Train tab choose the preset smoke and press Start. After its first epoch it answers here.",
)
WAITING = ("Looking at the picture", "The first answer takes some seconds: the network is loaded for it.")
NO_PICTURE = ("No picture yet", "Drop or paste a picture at the left, or choose one of the examples.")


class Answers:
    """The handlers of the tab; networks stay loaded between two questions."""

    def __init__(self, curves: Curves, runs_dir: Path):
        self.curves = curves
        self.runs_dir = runs_dir
        self.predictors = Predictors()

    def predict(self, picture: str | None, run: str = NEWEST, checkpoint: str = "best") -> dict[str, Any]:
        """Classify a picture with a run's network. `run` is an id or latest; `checkpoint` is best or last.

        Returns {label, probability, probabilities: {class: p}, run, checkpoint, step, milliseconds}.
        """
        try:
            return self.ask(picture, run, checkpoint)[1]
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def ask(self, picture: Any, run_id: Any, checkpoint: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """(what the network saw, the answer). Raises ValueError with a sentence."""
        run = choose_run(self.curves, self.runs_dir, run_id)
        if run is None:
            raise ValueError(f"{NO_RUN[0]}." if run_id == NEWEST else f"There is no run {str(run_id)[:64]!r}.")
        if not isinstance(picture, str):
            raise ValueError("A picture is missing.")
        predictor, used = self.predictors.load(run, checkpoint)
        begun = time.perf_counter()
        seen = to_input(read_picture(Path(picture)))
        row = predictor.predict(seen[None])[0]
        spent = time.perf_counter() - begun
        probabilities = {name: float(p) for name, p in zip(predictor.classes, row, strict=True)}
        label = max(probabilities, key=lambda name: probabilities[name])
        return seen, {
            "label": label,
            "probability": probabilities[label],
            "probabilities": probabilities,
            "run": run.id,
            "checkpoint": used,
            "step": predictor.step,
            "milliseconds": round(1000 * spent, 1),
        }

    def shown(self, picture: Any, run_id: Any, checkpoint: Any) -> str:
        """The answer, or what stands in its place, as HTML."""
        run = choose_run(self.curves, self.runs_dir, run_id)
        if run is None and run_id == NEWEST:
            return sentence(*NO_RUN)
        if picture is None:
            return sentence(*NO_PICTURE)
        try:
            seen, found = self.ask(picture, run.id if run else run_id, checkpoint)
            name = self.curves.state(found["run"]).run.config().label or found["run"]
        except PictureError as error:
            return sentence("This file cannot be used", str(error), is_problem=True)
        except ValueError as error:
            return sentence("No answer", f"{str(error).rstrip('.')}.", is_problem=True)
        return answer(seen, found, name, wished=checkpoint)

    def opened(self, picture: Any, run_id: Any, checkpoint: Any) -> list[Any]:
        """[runs to choose from, examples, answer] when the tab is opened; an answer that stands is left alone."""
        run_id = run_id if choose_run(self.curves, self.runs_dir, run_id) else NEWEST
        is_idle = picture is None or choose_run(self.curves, self.runs_dir, run_id) is None
        shown = self.shown(picture, run_id, checkpoint) if is_idle else gr.skip()
        return [self.choices(run_id), self.gallery(run_id), shown]

    def choices(self, run_id: Any) -> Any:
        choices = run_choices(self.curves, self.runs_dir)
        known = {value for _, value in choices}
        return gr.update(choices=choices, value=run_id if run_id in known else NEWEST)

    def gallery(self, run_id: Any) -> str:
        return gallery(examples(choose_run(self.curves, self.runs_dir, run_id)))

    def example(self, run_id: Any, event: gr.EventData) -> Any:
        """The picture itself is looked up here: what the browser sends is only its place."""
        found = examples(choose_run(self.curves, self.runs_dir, run_id))
        index = event._data.get("index") if isinstance(event._data, dict) else None
        return found.pictures[index] if type(index) is int and 0 <= index < len(found.pictures) else gr.skip()
