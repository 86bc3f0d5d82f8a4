"""The Predict tab: a picture in, what a trained network makes of it out. Whatever is uploaded gets an answer in words.

torch is loaded at the first prediction, not before, and computes on one thread, so that a run in training is not
slowed down. `latest` stands for the newest run that has a checkpoint, until the user chooses another.
"""

import time
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from trainer.pictures import PictureError, read_picture, to_input
from ui import widgets
from ui.curves import Curves
from ui.predict_view import GALLERY_JS, answer, gallery, sentence
from ui.predictors import NEWEST, Predictors, choose_run, examples, run_choices

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_PATIENT: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}
NO_RUN = (
    "There is no trained network yet",
    "Train one first: on the Train tab choose the preset smoke and press Start. After its first epoch it answers here.",
)
NO_PICTURE = ("No picture yet", "Drop or paste a picture at the left, or choose one of the test pictures.")


class SafeImage(gr.Image, metaclass=widgets.Quiet):
    """Hands over the path of the upload: `trainer.pictures` decodes it, with limits and a sentence for what fails."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return None if payload is None else payload.path


class PredictTab:
    """Builds the tab inside the current Blocks; `wire(tab)` connects it, `tab` being the gr.Tab around it."""

    def __init__(self, curves: Curves, runs_dir: Path):
        self.curves = curves
        self.runs_dir = runs_dir
        self.predictors = Predictors()
        with gr.Row(elem_id="predict", equal_height=False):
            with gr.Column(scale=0, min_width=300, elem_id="predict-input"):
                self.image = SafeImage(
                    label="Picture",
                    sources=["upload", "clipboard"],
                    height=240,
                    buttons=[],
                    elem_id="predict-image",
                )
                self.gallery = gr.HTML("", js_on_load=GALLERY_JS, elem_id="examples", padding=False)
            with gr.Column(scale=1, min_width=320, elem_id="predict-output"):
                with gr.Row(elem_id="predict-choice"):
                    self.run = widgets.Dropdown(
                        [("The newest run", NEWEST)], value=NEWEST, label="Run", min_width=220, elem_id="predict-run"
                    )
                    self.checkpoint = widgets.Radio(
                        [("Best", "best"), ("Last", "last")],
                        value="best",
                        label="Checkpoint",
                        min_width=150,
                        elem_id="predict-checkpoint",
                    )
                self.result = gr.HTML(sentence(*NO_PICTURE), elem_id="predict-result", padding=False)
        # What programs call takes any run, not only those that this page has listed.
        self._asked_run = widgets.Textbox(NEWEST, label="run", visible=False)
        self._asked_checkpoint = widgets.Textbox("best", label="checkpoint", visible=False)
        self._reply = gr.JSON(label="prediction", visible=False)
        self._call = gr.Button(visible=False)

    def wire(self, tab: gr.Tab) -> None:
        """Connect the events."""
        asked = [self.image, self.run, self.checkpoint]
        limits: dict[str, Any] = {"concurrency_limit": 2, "concurrency_id": "predict"}
        tab.select(self._on_open, asked, [self.run, self.gallery, self.result], **_QUIET)
        self.run.focus(self._choices, self.run, self.run, **_QUIET)
        self.run.input(self._examples, self.run, self.gallery, **_QUIET)
        gr.on(
            [self.image.change, self.run.input, self.checkpoint.input],
            self._on_ask,
            asked,
            self.result,
            trigger_mode="always_last",
            **limits,
            **_PATIENT,
        )
        self.gallery.choose(self._on_example, self.run, self.image, **_QUIET)
        self._call.click(
            self.predict,
            [self.image, self._asked_run, self._asked_checkpoint],
            self._reply,
            api_name="predict",
            **limits,
        )

    def predict(self, picture: str | None, run: str = NEWEST, checkpoint: str = "best") -> dict[str, Any]:
        """Classify a picture with a run's network. `run` is an id or latest; `checkpoint` is best or last.

        Returns {label, probability, probabilities: {class: p}, run, checkpoint, step, milliseconds}.
        """
        try:
            return self._ask(picture, run, checkpoint)[1]
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def _ask(self, picture: Any, run_id: Any, checkpoint: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """(what the network saw, the answer). Raises ValueError with a sentence."""
        run = choose_run(self.curves, self.runs_dir, run_id)
        if run is None:
            raise ValueError(f"{NO_RUN[0]}.")
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

    # Events of the page

    def _on_ask(self, picture: Any, run_id: Any, checkpoint: Any) -> str:
        run = choose_run(self.curves, self.runs_dir, run_id)
        if run is None:
            return sentence(*NO_RUN)
        if picture is None:
            return sentence(*NO_PICTURE)
        try:
            seen, found = self._ask(picture, run.id, checkpoint)
        except PictureError as error:
            return sentence("This file cannot be used", str(error), is_problem=True)
        except ValueError as error:
            return sentence("No answer", f"{error}.".replace("..", "."), is_problem=True)
        name = self.curves.state(run.id).run.config().label or run.id
        return answer(seen, found, name, wished=checkpoint)

    def _on_open(self, picture: Any, run_id: Any, checkpoint: Any) -> list[Any]:
        run_id = run_id if choose_run(self.curves, self.runs_dir, run_id) else NEWEST
        is_idle = picture is None or choose_run(self.curves, self.runs_dir, run_id) is None
        shown = self._on_ask(picture, run_id, checkpoint) if is_idle else gr.skip()
        return [self._choices(run_id), self._examples(run_id), shown]

    def _choices(self, run_id: Any) -> Any:
        choices = run_choices(self.curves, self.runs_dir)
        known = {value for _, value in choices}
        return gr.update(choices=choices, value=run_id if run_id in known else NEWEST)

    def _examples(self, run_id: Any) -> str:
        return gallery(examples(choose_run(self.curves, self.runs_dir, run_id)))

    def _on_example(self, run_id: Any, event: gr.EventData) -> Any:
        """The picture itself is looked up here: what the browser sends is only its place."""
        found = examples(choose_run(self.curves, self.runs_dir, run_id))
        index = event._data.get("index") if isinstance(event._data, dict) else None
        return found.pictures[index] if type(index) is int and 0 <= index < len(found.pictures) else gr.skip()


def build_predict_tab(curves: Curves, runs_dir: Path) -> PredictTab:
    """Build the tab inside the current Blocks. Call `.wire(tab)` with the gr.Tab around it."""
    return PredictTab(curves, runs_dir)
