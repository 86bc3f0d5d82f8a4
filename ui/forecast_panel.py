"""What more devices would bring, below the table of a race: measured for half a minute, reckoned, told in words."""

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import gradio as gr
from pydantic import ValidationError

from trainer.background import ROOT, TRAINER, trainer_environment
from trainer.calibration import Calibration
from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu
from trainer.forecast import Network, cluster, forecast
from trainer.forecast_words import COLUMNS, assumptions, cells
from trainer.presets import to_argv
from trainer.runs import RunError
from ui import widgets
from ui.form import Form, parse
from ui.race_form import in_words
from ui.run_buttons import alert
from ui.supervisor import Supervisor

WIDTHS = (1, 2, 4, 8)  # devices of one machine that are reckoned
MACHINES = (1, 2, 8, 32, 125)  # 125 of 8 devices are a thousand
PATIENCE = 240  # seconds for the calibration; fast on a loaded CPU takes some 90
USUAL_GBIT = 25
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


class ForecastPanel:
    """Builds the widgets inside the current Blocks; `form` is that of the Train tab."""

    def __init__(self, supervisor: Supervisor, form: Form):
        self.supervisor = supervisor
        self.train_form = form
        self._busy = threading.Lock()
        with gr.Accordion("What would more devices bring?", open=False, elem_id="forecast"):
            with gr.Row(elem_classes=["fields"]):
                self.gbit = widgets.Number(
                    value=USUAL_GBIT, label="Network between machines (Gbit/s)", minimum=0, elem_id="forecast-gbit"
                )
                self.press = gr.Button("Measure and forecast", min_width=80, elem_id="forecast-press")
            self.problem = gr.HTML("", visible=False, elem_id="forecast-problem", padding=False)
            self.answer = gr.HTML(f"<p>{escape(_TEACHING)}</p>", elem_id="forecast-answer", padding=False)

    def wire(self) -> None:
        """Connect the events; called when the whole page is built."""
        settings = self.train_form.inputs
        told = [self.problem, self.answer, self.press]
        self.press.click(_is_measuring, None, told, queue=False, **_QUIET).then(
            self._on_press, [self.gbit, *settings], told, **_QUIET
        )

    def _on_press(self, gbit: Any, *settings: Any) -> list[Any]:
        ready = gr.update(value="Measure and forecast", interactive=True)
        try:
            network = _network(gbit)
            config = parse({**self.train_form.raw(settings), "parallel": "single", "processes": 0})
            html = as_html(self._measure(config), config, network)
        except ConfigError as error:
            return [alert(f"Not measured. {in_words(error)}."), gr.skip(), ready]
        except RunError as error:
            return [alert(f"Not measured: {error}."), gr.skip(), ready]
        return [alert(""), html, ready]

    def _measure(self, config: TrainConfig) -> Calibration:
        """Raises RunError; ConfigError for settings that the command refuses."""
        living = self.supervisor.living()
        if living:
            raise RunError(
                f"{living[0].id} is at work, and measuring beside it says nothing: wait for its end or stop it"
            )
        if not self._busy.acquire(blocking=False):
            raise RunError("another page is measuring at this moment: try again in half a minute")
        try:
            return calibrate(config, self.train_form.gpus)
        finally:
            self._busy.release()


_TEACHING = (
    "The settings of the Train tab are measured for about half a minute on one rank and on several side by side; "
    "nothing is trained. From that it is reckoned how fast more devices would be, here and on other machines."
)


def _is_measuring() -> list[Any]:
    return [alert(""), gr.skip(), gr.update(value="Measuring, about half a minute ...", interactive=False)]


def _network(gbit: Any) -> Network:
    """Raises ConfigError."""
    try:
        return Network(gbit=gbit)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Input ").lower()
        raise ConfigError({"network": f"{str(gbit)[:40]}: {said}"}) from None


def calibrate(config: TrainConfig, gpus: Sequence[Gpu]) -> Calibration:
    """What `python -m trainer forecast` measures here, and keeps. Raises RunError."""
    most = 4 if config.devices == "cpu" or not gpus else len(gpus)
    modes = [f"ddp:{count}" for count in WIDTHS if 1 < count <= most and config.batch_size % count == 0]
    words = [*TRAINER, "forecast", "single", *modes, "--json", *to_argv(config)]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=trainer_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode == 0:
            return Calibration.model_validate(json.loads(done.stdout)["calibration"])
    except subprocess.TimeoutExpired:
        raise RunError(f"it took longer than {PATIENCE} s: this machine is busy with something else") from None
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise RunError(f"the measurement gave no answer: {error}") from None
    lines = [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]
    raise RunError(lines[-1][:300] if lines else f"the measurement ended with exit code {done.returncode}")


def as_html(made: Calibration, config: TrainConfig, network: Network) -> str:
    """Two tables, a sentence above each, and what they rest on."""
    width = 1 if made.is_cpu else max(made.counts)
    counts = [count for count in WIDTHS if config.batch_size % count == 0 and (made.exchange or count == 1)]
    here = forecast(made, config.batch_size, counts, "strong")
    apart = cluster(made, config.batch_size, MACHINES, width, network, "weak")
    shown = [row for row in apart if row["machines"] > 1]
    words = assumptions(made, [*here, *shown], None, network)
    return "".join(
        [
            f"<p>{escape(headline(here, made.is_cpu))}</p>",
            _table(here),
            f"<p>{escape(_apart(shown, width, config.batch_size, network))}</p>",
            _table([{**row, "name": f"{row['machines']} machines"} for row in shown]),
            "<details><summary>What this rests on</summary><ul>",
            *(f"<li>{escape(sentence)}</li>" for sentence in words),
            "</ul></details>",
        ]
    )


def headline(here: Sequence[Mapping[str, Any]], is_cpu: bool) -> str:
    """What more devices of this machine would bring, at the same batch."""
    most, best = here[-1], max(here, key=lambda row: row["images_per_second"])
    if len(here) < 2:
        return "One device only: no exchange between ranks could be measured here."
    name = "one process" if best["ranks"] == 1 else best["name"]
    devices = f"{most['ranks']} {'ranks on these cores' if is_cpu else 'such GPUs'}"
    return (
        f"At this batch {name} would be the fastest: {best['images_per_second']:,.0f} images/s. {devices} would train "
        f"{most['speed_up']:.2g} times as fast as one, {100 * most['exchange_share']:.0f} % of a step being "
        "exchange that nothing hides."
    )


def _apart(rows: Sequence[Mapping[str, Any]], width: int, batch_size: int, network: Network) -> str:
    most = rows[-1]
    each = "like this one" if width == 1 else f"of {width} such GPUs"
    return (
        f"Machines {each} over {network.gbit:g} Gbit/s, {batch_size:,} pictures in a step for each device: "
        f"{most['ranks']:,} devices would train {most['speed_up']:,.3g} times as fast as one."
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(word)}</th>" for word in COLUMNS)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(dict(row))) + "</tr>" for row in rows)
    rows_and_head = f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
    return f'<div class="race-frame"><table class="race forecast">{rows_and_head}</table></div>'
