"""Two components around one Plotly chart in the page: `LiveRun` follows a run, `CompareRuns` lays several over another.

The page holds the data and a cursor; each second it asks `points` for what is new. No connection is kept, so any
number of tabs, a reload and a restarted server all show the same. What arrives here comes straight from browsers:
it is checked, and nothing raises.
"""

import json
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import plotly

from trainer.runs import RUN_ID, Run
from ui.curves import POINT_BINS, Cursor, Curves
from ui.inside import inside_reply
from ui.json_reply import json_reply
from ui.run_facts import elapsed, facts, log_end

HERE = Path(__file__).parent
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
ALLOWED_PATHS = [str(PLOTLY_JS)]  # for launch(): the page loads Plotly from the wheel, also offline
_PLOTLY_URL = f"gradio_api/file={PLOTLY_JS}"  # relative: right behind a proxy with a root path as well
HEAD = f'<link rel="preload" as="script" href="{_PLOTLY_URL}">'  # for launch(): the download starts with the page
CSS = "".join((HERE / name).read_text("utf-8") for name in ("live_chart.css", "inside.css"))  # for launch()
MAX_RUNS = 8  # in one comparison; there are as many colours
MAX_COUNT = 2**53


def _component_js(mode: str) -> str:
    parts = [
        (HERE / name).read_text("utf-8") for name in ("curve_chart.js", "run_head.js", "inside.js", "live_chart.js")
    ]
    return "\n".join([*parts, f"follow({json.dumps(mode)});"])


def _chart(curves: Curves, mode: str, value: dict[str, Any], elem_id: str) -> gr.HTML:
    """Not a subclass: Gradio writes a stub file beside every source file that derives from a component."""
    return gr.HTML(
        value=value,
        elem_id=elem_id,
        elem_classes=["curves"],
        html_template=(HERE / f"live_chart_{mode}.html").read_text("utf-8"),
        js_on_load=_component_js(mode),
        head=f'<script src="{_PLOTLY_URL}"></script>',
        server_functions=[
            json_reply(partial(points_reply, curves), "points"),
            json_reply(partial(log_reply, curves), "log"),
            json_reply(partial(inside_reply, curves), "inside"),
        ],
        apply_default_css=False,
    )


def LiveRun(curves: Curves, elem_id: str = "live") -> gr.HTML:
    """One run: state, progress, curves, log. Value: {"run": id}; {"run": None} to follow nothing; {} at first.

    Its event `statechange` says that the run has another state than the page knew; event data: `run`, `state`.
    Event `runschange`: some run came, went, was asked to stop, or has another place in the queue.
    """
    return _chart(curves, "run", {}, elem_id)


def CompareRuns(curves: Curves, elem_id: str = "compare") -> gr.HTML:
    """Several runs in one chart, a colour for each. Value: {"runs": [ids]}, of which the first 8 are drawn."""
    return _chart(curves, "compare", {"runs": []}, elem_id)


def points_reply(curves: Curves, request: dict[str, Any]) -> dict[str, Any]:
    """{runs: [{run, version, points, tests, seen}], bins} -> {runs: [what each lacks], board: its version}."""
    wanted = request.get("runs")
    max_bins = max(16, min(_count(request.get("bins")), POINT_BINS))
    asked = [item for item in wanted if isinstance(item, dict)] if isinstance(wanted, list) else []
    return {"runs": [_news(curves, item, max_bins) for item in asked[:MAX_RUNS]], "board": curves.board.version}


def _news(curves: Curves, item: dict[str, Any], max_bins: int) -> dict[str, Any]:
    run_id = _run_id(item)
    if run_id is None:
        return {"run": None, "state": "missing"}
    cursor = Cursor(str(item.get("version"))[:16], _count(item.get("points")), _count(item.get("tests")))
    try:
        with curves.history(run_id) as history:
            known = facts(history, curves.board.place(history.run))
            reply = {"run": run_id, "state": str(history.state.status), **history.since(cursor, max_bins)}
            reply["elapsed"] = elapsed(history)
    except ValueError:  # deleted, or never there
        return {"run": run_id, "state": "missing"}
    # The page tells which facts it shows, so that they travel only when they change.
    seen = zlib.crc32(json.dumps(known).encode())
    if seen != item.get("seen"):
        reply |= known | {"seen": seen}
    return reply


def log_reply(curves: Curves, request: dict[str, Any]) -> dict[str, Any]:
    """{run} -> {text}: the end of its log."""
    run_id = _run_id(request)
    return {"text": log_end(Run(curves.runs_dir / run_id)) if run_id else ""}


def _run_id(item: dict[str, Any]) -> str | None:
    run_id = item.get("run")
    return run_id if isinstance(run_id, str) and RUN_ID.fullmatch(run_id) else None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < MAX_COUNT else 0
