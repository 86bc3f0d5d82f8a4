"""Pages that were loaded from an earlier server. Gradio numbers buttons and handlers by their place in the page, so
what an old page presses may be another button of a server that was updated meanwhile: it is refused instead."""

import json
import zlib
from pathlib import Path

import gradio as gr
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-page-version"


def version_of(page: gr.Blocks) -> str:
    """The same for two servers if their pages have the same components and handlers at the same places."""
    config = page.config
    names = ("elem_id", "label")
    components = [
        (item["id"], item["type"], *(str(item["props"].get(name)) for name in names)) for item in config["components"]
    ]
    keys = ("targets", "inputs", "outputs", "api_name")
    handlers = [[item.get(key) for key in keys] for item in config["dependencies"]]
    return f"{zlib.crc32(json.dumps([gr.__version__, components, handlers]).encode()):08x}"


def script(version: str) -> str:
    """For the head of the page: sends the version along, and tells when the server no longer takes what it sends."""
    code = Path(__file__).with_name("page_version.js").read_text("utf-8")
    return f"<script>{code}\nguardPage({json.dumps(HEADER)}, {json.dumps(version)});</script>"


class SameVersion:
    """Refuses what a page of another version sends; programs, which send no version, go by names."""

    def __init__(self, app: ASGIApp, version: str):
        self.app = app
        self.version = version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_checked = scope["type"] == "http" and not scope["path"].endswith("/app_id")  # asked before a reload
        sent = Headers(scope=scope).get(HEADER) if is_checked else None
        if sent is not None and sent != self.version:
            detail = "This page is older than the server: reload it."
            await JSONResponse({"detail": detail}, status_code=409)(scope, receive, send)
            return
        await self.app(scope, receive, send)
