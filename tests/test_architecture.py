"""The rules that hold the house together."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_app_leaves_torch_out():
    assert not {"torch", "torchvision"} & loaded_after("import app")


@pytest.mark.parametrize(
    "module",
    [
        *("config", "presets", "events", "runs", "devices", "placement", "processes", "stop", "ranks", "blame"),
        *("queue", "background", "signals", "pulse", "causes", "watcher", "launch", "__main__"),
        *("measure", "race", "race_table", "race_command", "report", "report_command"),
        *("calibration", "forecast", "forecast_words", "forecast_command"),
    ],
)
def test_the_contracts_need_no_torch(module: str):
    assert "torch" not in loaded_after(f"import trainer.{module}")


def test_the_way_to_the_first_step_loads_neither_the_page_nor_torchvision():
    loaded = loaded_after("import trainer.work")
    assert "torch" in loaded
    assert not {"torchvision", "gradio", "plotly"} & loaded


def test_the_readmes_file_map_names_every_file():
    readme = (ROOT / "README.md").read_text()
    files = [path for folder in ("trainer", "ui") for path in (ROOT / folder).rglob("*.*") if path.is_file()]
    names = {path.name for path in files if path.suffix in (".py", ".js", ".css") and path.name != "__init__.py"}
    assert names
    assert not {name for name in names if name not in readme}
