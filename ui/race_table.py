"""The table of a race in the page, kept up to date there by asking each second.

The component's value: {"race": id}, or {"runs": [ids]} for any runs side by side, or {}.
Event `racechange`: the race is in another state, or has other runs.
"""

from pathlib import Path
from typing import Any

import gradio as gr

from ui.json_reply import json_reply
from ui.race_facts import RaceFacts

HERE = Path(__file__).parent


def race_table(facts: RaceFacts, elem_id: str = "race-table") -> Any:
    """The component. It listens to nothing; connect its event with `.racechange(...)`."""
    return gr.HTML(
        value={},
        elem_id=elem_id,
        elem_classes=["curves"],  # for the colours of the states
        html_template=(HERE / "race_table.html").read_text("utf-8"),
        js_on_load="\n".join((HERE / name).read_text("utf-8") for name in ("run_head.js", "race_table.js")),
        server_functions=[json_reply(facts.news, "race"), json_reply(facts.report, "report")],
        apply_default_css=False,
    )
