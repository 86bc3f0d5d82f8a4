"""Serves the two chart components on a directory of runs: chart_app.py RUNS_DIR PORT (0: any). Prints the address."""

import os
import sys
from pathlib import Path

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

import gradio as gr

from trainer.run_list import iter_runs
from ui.curves import Curves
from ui.live_chart import ALLOWED_PATHS, CSS, HEAD, CompareRuns, LiveRun


def build(runs_dir: Path) -> gr.Blocks:
    curves = Curves(runs_dir)

    def newest() -> dict:
        return {"run": next((run.id for run in iter_runs(runs_dir)), None)}

    def compared() -> dict:
        return {"runs": [run.id for run in iter_runs(runs_dir)]}

    def told(event: gr.EventData) -> str:
        return f"{event.run} is {event.state}"

    with gr.Blocks(title="Charts", fill_width=True) as demo:
        with gr.Tab("Live"):
            live = LiveRun(curves)
            said = gr.Textbox(label="Event", elem_id="said")
            follow = gr.Button("Follow the newest run")
        with gr.Tab("Compare"):
            compare = CompareRuns(curves)
        live.statechange(told, None, said, show_progress="hidden")
        follow.click(newest, None, live, show_progress="hidden")
        demo.load(newest, None, live, show_progress="hidden")
        demo.load(compared, None, compare, show_progress="hidden")
    return demo


if __name__ == "__main__":
    demo = build(Path(sys.argv[1]))
    _, url, _ = demo.launch(
        server_port=int(sys.argv[2]) or None,
        theme=gr.themes.Default(primary_hue="indigo", font=["system-ui", "sans-serif"]),
        css=CSS,
        head=HEAD,
        allowed_paths=ALLOWED_PATHS,
        ssr_mode=False,
        run_history=False,
        quiet=True,
        prevent_thread_lock=True,
    )
    print(url, flush=True)
    demo.block_thread()
