"""The page: header and tabs. Wiring, no logic."""

import os
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported

import gradio as gr

from trainer.config import TrainConfig
from trainer.devices import list_gpus
from ui.api import Page, publish
from ui.compare_tab import CompareTab
from ui.curves import Curves
from ui.first_visit import FirstVisit
from ui.form import Form
from ui.live_chart import ALLOWED_PATHS, CSS, HEAD, LiveRun
from ui.page_version import script, version_of
from ui.predict_tab import build_predict_tab
from ui.runs_tab import Hook, build_runs_tab
from ui.supervisor import Supervisor
from ui.train_tab import TrainTab

_FONTS = ["ui-sans-serif", "system-ui", "sans-serif"]
_HALF_TYPED = f"<script>{Path(__file__).with_name('half_typed.js').read_text('utf-8')}</script>"
_HEADER = "<h1>Parallel Trainer</h1><p>Train an image classifier on one device or many, and watch it learn.</p>"


def build_app(runs_dir: Path, data_dir: str) -> gr.Blocks:
    """The whole page for one runs directory. `data_dir` is where the form looks for CIFAR-10 at first."""
    supervisor, curves = Supervisor(runs_dir), Curves(runs_dir)
    form = Form(list_gpus(), TrainConfig(data_dir=data_dir))
    with Page(title="Parallel Trainer", fill_width=True, delete_cache=(3600, 86400)) as page:
        gr.HTML(_HEADER, elem_id="header")
        with gr.Tabs() as tabs:
            with gr.Tab("Train", id="train"):
                train = TrainTab(
                    supervisor, curves.board, form, FirstVisit(data_dir), lambda: LiveRun(curves, elem_id="live")
                )
            with gr.Tab("Runs", id="runs") as runs_tab:
                runs = build_runs_tab(curves, supervisor)
            with gr.Tab("Compare", id="compare") as compare_tab:
                compare = CompareTab(supervisor, curves, form)
            with gr.Tab("Predict", id="predict") as predict_tab:
                predict = build_predict_tab(curves, runs_dir)
        publish(supervisor)  # first: a later handler of the same name would get the number behind it
        to_train = gr.update(selected="train")
        train.wire(page, tabs)
        runs.wire(
            runs_tab,
            open_run=Hook(lambda run_id: [to_train, {"run": run_id}], [tabs, train.live]),
            load_settings=Hook(lambda config: [to_train, *train.fill(config)], [tabs, *train.answer]),
            compare_runs=Hook(
                lambda ids: [gr.update(selected="compare"), *compare.shown_runs(ids)], [tabs, *compare.outputs]
            ),
        )
        compare.wire(page, compare_tab, tabs)
        predict.wire(predict_tab)
    page.queue(max_size=64, default_concurrency_limit=8)
    return page


def launch_options(page: gr.Blocks) -> dict[str, Any]:
    """How this page is served, whoever launches it: looks, privacy, limits."""
    return {
        "theme": gr.themes.Default(
            primary_hue="indigo", font=_FONTS, font_mono=["ui-monospace", "Consolas", "monospace"]
        ),
        "css": CSS,
        "css_paths": [Path(__file__).with_name(name) for name in ("page.css", "runs.css", "race.css", "predict.css")],
        "head": HEAD + script(version_of(page)) + _HALF_TYPED,
        "allowed_paths": ALLOWED_PATHS,
        "footer_links": ["api", "settings"],
        "run_history": False,
        "ssr_mode": False,
        "share": False,
        "mcp_server": False,
        "enable_monitoring": False,
        "pwa": False,
        "show_error": False,
        "max_file_size": "10mb",
        "quiet": True,
    }
