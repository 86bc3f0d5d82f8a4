"""The endpoints that programs may call: start, stop, status. Every input is hostile until it was checked."""

from itertools import chain
from typing import Any

import gradio as gr

from trainer.config import ConfigError, TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run, RunError
from ui.supervisor import Supervisor

MAX_ERROR = 2000  # characters; what was refused may be long


class Page(gr.Blocks):
    """Blocks that take exactly as many values as an event has. Gradio drops those beyond and goes on."""

    def validate_inputs(self, block_fn: Any, inputs: list[Any]) -> None:
        wanted = len(block_fn.inputs)
        if len(inputs) != wanted:
            raise _refused(f"{block_fn.name} takes {wanted} value{'' if wanted == 1 else 's'}, not {len(inputs)}")


def publish(supervisor: Supervisor) -> None:
    """Add the endpoints to the current Blocks."""

    def start(settings: dict) -> dict:
        """Start a run. `settings` are fields of the form by name, for example {"dataset": "shapes", "epochs": 1};
        those left out have their defaults. It waits in the queue while its devices are busy.
        Returns {"run": id, "status": status}."""
        if not isinstance(settings, dict):
            raise _refused("settings: must be an object with the names of fields")
        try:
            run = supervisor.start(TrainConfig.parse(settings))
        except (ConfigError, RunError) as error:
            raise _refused(str(error)) from None
        except RecursionError:
            raise _refused("settings: are nested too deeply") from None
        return {"run": run.id, "status": str(run.state().status)}

    def stop(run: str) -> dict:
        """Stop a run: it saves a checkpoint and ends within seconds. One that is queued is taken out of the queue.
        Returns what `status` does."""
        try:
            return _status(supervisor.stop(run))
        except RunError as error:
            raise _refused(str(error)) from None

    def status(run: str = "") -> dict[str, Any]:
        """How a run stands; without an id the newest that trains now, else the first in the queue, else the
        newest. {"run": null} if there is none."""
        if run:
            try:
                return _status(supervisor.run(run))
            except RunError as error:
                raise _refused(str(error)) from None
        known = chain(supervisor.living(), supervisor.queued(), iter_runs(supervisor.runs_dir))
        found = next(known, None)
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
    return gr.Error(text[:MAX_ERROR], print_exception=False)
