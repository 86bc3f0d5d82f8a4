"""The endpoints that programs may call: start, stop, status. Every input is hostile until it was checked."""

from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig
from trainer.runs import Run, RunError, iter_runs
from ui.supervisor import Supervisor


def publish(supervisor: Supervisor) -> None:
    """Add the endpoints to the current Blocks."""

    def start(settings: dict) -> dict:
        """Start a run. `settings` are fields of the form by name, for example {"dataset": "shapes", "epochs": 1};
        those left out have their defaults. Returns {"run": id}."""
        if not isinstance(settings, dict):
            raise _refused("settings: must be an object with the names of fields")
        try:
            return {"run": supervisor.start(TrainConfig.parse(settings)).id}
        except (ConfigError, RunError) as error:
            raise _refused(str(error)) from None

    def stop(run: str) -> dict:
        """Stop a run: it saves a checkpoint and ends within seconds. Returns {"run": id, "status": status}."""
        try:
            return _status(supervisor.stop(run))
        except RunError as error:
            raise _refused(str(error)) from None

    def status(run: str = "") -> dict[str, Any]:
        """How a run stands; without an id the one that trains now, else the newest. {"run": null} if there is none."""
        if run:
            try:
                return _status(supervisor.run(run))
            except RunError as error:
                raise _refused(str(error)) from None
        found = next(iter(supervisor.living()), None) or next(iter_runs(supervisor.runs_dir), None)
        return _status(found) if found else {"run": None}

    for endpoint in (start, stop, status):
        gr.api(endpoint, api_name=endpoint.__name__)


def _status(run: Run) -> dict[str, Any]:
    state = run.state()
    return {
        "run": run.id,
        "status": str(state.status),
        "error": state.error,
        "epoch": state.step.get("epoch", 0),
        "step": state.step.get("step", 0),
        "loss": state.step.get("loss"),
        "best_accuracy": state.best_accuracy,
    }


def _refused(text: str) -> gr.Error:
    return gr.Error(text, print_exception=False)
