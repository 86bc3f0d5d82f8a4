"""The Predict tab: a picture in, what a trained network makes of it out. Whatever is uploaded gets an answer in words.

torch is loaded at the first prediction, not before, and computes on one thread, so that a run in training is not
slowed down. `latest` stands for the newest run that has a checkpoint, until the user chooses another; while there is
none, the network that comes with the program answers.
"""

import json
from pathlib import Path
from typing import Any

import gradio as gr

from ui import widgets
from ui.curves import Curves
from ui.predict_answers import NO_PICTURE, WAITING, Answers
from ui.predict_view import GALLERY_JS, sentence
from ui.predictors import NEWEST

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_PATIENT: dict[str, Any] = {"show_progress": "minimal", "api_visibility": "private"}


class SafeImage(gr.Image, metaclass=widgets.Quiet):
    """Hands over the path of the upload: `trainer.pictures` decodes it, with limits and a sentence for what fails."""

    is_template = True

    def preprocess(self, payload: Any) -> Any:
        return None if payload is None else payload.path


class PredictTab:
    """Builds the tab inside the current Blocks; `wire(tab)` connects it, `tab` being the gr.Tab around it."""

    def __init__(self, curves: Curves, runs_dir: Path):
        self.answers = Answers(curves, runs_dir)
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
                        [("The newest run", NEWEST)],
                        value=NEWEST,
                        label="Network",
                        scale=2,
                        min_width=220,
                        elem_id="predict-run",
                    )
                    self.checkpoint = widgets.Radio(
                        [("Best", "best"), ("Last", "last")],
                        value="best",
                        label="Checkpoint",
                        scale=1,
                        min_width=150,
                        elem_id="predict-checkpoint",
                    )
                    self.tta = widgets.Checkbox(
                        False,
                        label="Six views",
                        info="The mean answer for the picture, shifted and mirrored: slower, more often right.",
                        scale=1,
                        min_width=180,
                        elem_id="predict-tta",
                    )
                self.result = gr.HTML(sentence(*NO_PICTURE), elem_id="predict-result", padding=False)
        # What programs call takes any run, not only those that this page has listed.
        self._asked_run = widgets.Textbox(NEWEST, label="run", visible=False)
        self._asked_checkpoint = widgets.Textbox("best", label="checkpoint", visible=False)
        self._asked_tta = widgets.Checkbox(False, label="tta", visible=False)
        self._reply = gr.JSON(label="prediction", visible=False)
        self._call = gr.Button(visible=False)

    def wire(self, tab: gr.Tab) -> None:
        """Connect the events."""
        answers = self.answers
        asked = [self.image, self.run, self.checkpoint, self.tta]
        limits: dict[str, Any] = {"concurrency_limit": 2, "concurrency_id": "predict"}
        tab.select(answers.opened, asked, [self.run, self.checkpoint, self.gallery, self.result], **_QUIET)
        self.run.focus(answers.choices, self.run, self.run, **_QUIET)
        self.run.input(answers.chosen, self.run, [self.checkpoint, self.gallery], **_QUIET)
        # In the browser, at once: the answer may take a while.
        waiting = f"() => {json.dumps(sentence(*WAITING))}"
        self.image.change(None, None, self.result, js=waiting, queue=False, **_QUIET)
        gr.on(
            [self.image.change, self.run.input, self.checkpoint.input, self.tta.input],
            answers.shown,
            asked,
            self.result,
            trigger_mode="always_last",
            **limits,
            **_PATIENT,
        )
        self.gallery.choose(answers.example, self.run, self.image, **_QUIET)
        self._call.click(
            answers.predict,
            [self.image, self._asked_run, self._asked_checkpoint, self._asked_tta],
            self._reply,
            api_name="predict",
            **limits,
        )


def build_predict_tab(curves: Curves, runs_dir: Path) -> PredictTab:
    """Build the tab inside the current Blocks. Call `.wire(tab)` with the gr.Tab around it."""
    return PredictTab(curves, runs_dir)
