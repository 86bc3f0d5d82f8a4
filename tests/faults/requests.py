"""Requests to the page by strangers: nothing is started, nothing is read, and it goes on serving."""

import http.client
import json
import socket
import threading
import time
from typing import Any

from tests.conftest import ROOT, await_true
from tests.faults.catalogue import fault
from tests.faults.stage import Stage
from tests.page import Server
from trainer.run_list import iter_runs

JSON = {"Content-Type": "application/json"}
START = "/gradio_api/call/start"
GOOD = {"dataset": "shapes", "epochs": 1, "max_steps": 1, "devices": "cpu"}


def ask(port: int, method: str, path: str, body: str | bytes = "", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body or None, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()


def call(port: int, name: str, *data: Any, raw: str = "") -> str:
    """Call an endpoint as any program can, without its client's checks; the whole answer."""
    status, text = ask(port, "POST", f"/gradio_api/call/{name}", raw or json.dumps({"data": list(data)}), **JSON)
    if status != 200 or "event_id" not in text:
        return f"{status} {text}"
    return ask(port, "GET", f"/gradio_api/call/{name}/{json.loads(text)['event_id']}")[1]


def none_started(server: Server) -> None:
    runs = list(iter_runs(server.runs_dir))
    assert not runs, f"{len(runs)} runs were started: {[run.config() for run in runs]}"
    assert ask(server.port, "GET", "/")[0] == 200, "the page does not answer any more"


@fault(
    "Host and Origin of other sites, no JSON, other methods", "400, 403 or 4xx each time; 0 runs started", quick=True
)
def foreign_sites(stage: Stage) -> str:
    server = stage.serve()
    body = json.dumps({"data": [GOOD]})
    cases: list[tuple[dict[str, str], str, tuple[int, ...]]] = [
        ({"Host": "evil.example", **JSON}, body, (400,)),
        ({"Host": "127.0.0.1.evil.example", "Origin": "http://127.0.0.1.evil.example", **JSON}, body, (400, 403)),
        ({"Origin": "http://evil.example", **JSON}, body, (403,)),
        ({"Origin": "null", **JSON}, body, (403,)),
        ({"Origin": "http://evil.example", "Content-Type": "text/plain"}, body, (403, 422)),
        ({"Content-Type": "text/plain"}, body, (400, 415, 422)),
        ({"Content-Type": "application/x-www-form-urlencoded"}, f"data={body}", (400, 415, 422)),
        (JSON, body[:-1], (400, 422)),
        (JSON, "[" * 100_000, (400, 422, 500)),
    ]
    for headers, text, expected in cases:
        status, _ = ask(server.port, "POST", START, text, **headers)
        assert status in expected, f"{headers}: {status} instead of {expected}"
    for path in ("/gradio_api/queue/join", "/gradio_api/run/start", "/api/start"):
        status, _ = ask(server.port, "POST", path, body, Origin="http://evil.example", **JSON)
        assert status >= 400, f"{path}: {status}"
    time.sleep(1)
    none_started(server)
    return f"{len(cases) + 3} requests refused, 0 runs started"


@fault("every door without the password, and 30 guesses", "401 each time; guessing is cut short; 0 runs started")
def without_password(stage: Stage) -> str:
    users = stage.directory / "users"
    users.write_text("ada:engine\n")
    server = stage.serve("--auth", str(users))
    body = json.dumps({"data": [GOOD]})
    doors = [
        ("GET", "/config"),
        ("GET", "/gradio_api/info"),
        ("POST", START),
        ("POST", "/gradio_api/queue/join"),
        ("POST", "/gradio_api/upload"),
        ("GET", "/gradio_api/file=/etc/passwd"),
    ]
    for method, path in doors:
        status, _ = ask(server.port, method, path, body, **JSON)
        assert status in (401, 403), f"{method} {path}: {status}"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for number in range(30):
        assert ask(server.port, "POST", "/login", f"username=ada&password=guess{number}", **form)[0] >= 400
    after = ask(server.port, "POST", "/login", "username=ada&password=engine", **form)[0]
    assert after >= 400, "the right password was taken right after 30 wrong ones"
    assert not list(iter_runs(server.runs_dir))
    return f"{len(doors)} doors shut; after 30 guesses even the right one waits ({after})"


@fault(
    "an upload of 30 MB, files of the machine by /file=, by path in a picture, and by URL", "refused; nothing is read"
)
def foreign_files(stage: Stage) -> str:
    server = stage.serve()
    canary = socket.create_server(("127.0.0.1", 0))
    hits: list[object] = []

    def listen() -> None:
        while True:
            try:
                hits.append(canary.accept())
            except OSError:
                return

    threading.Thread(target=listen, daemon=True).start()
    boundary = "b"
    part = f"--{boundary}\r\nContent-Disposition: form-data; name=files; filename=a.png\r\n\r\n".encode()
    upload = part + b"\0" * 30_000_000 + f"\r\n--{boundary}--\r\n".encode()
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    try:
        status = ask(server.port, "POST", "/gradio_api/upload", upload, **kind)[0]
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # refused before it was read to its end
    assert status == 413, f"the upload: {status}"
    seen = []
    url = f"http://127.0.0.1:{canary.getsockname()[1]}/x.png"
    secret = stage.directory / "secret.txt"
    secret.write_text("secret-of-this-machine")
    for path in (secret, ROOT / "app.py", f"/proc/self/cwd/../{secret}", url):
        status, text = ask(server.port, "GET", f"/gradio_api/file={path}")
        assert status in (403, 404), f"file={path}: {status}"
        assert "secret-of" not in text
        for wrapped in ({"path": str(path), "meta": {"_type": "gradio.FileData"}}, {"url": str(path)}, str(path)):
            answer = call(server.port, "predict", wrapped, "newest")
            assert "secret-of" not in answer, answer
            seen.append(answer)
    time.sleep(0.5)
    canary.close()
    assert not hits, f"the server fetched {url}"
    none_started(server)
    return f"413; 4 paths and {len(seen)} pictures by path or URL refused; no connection to the canary"


HOSTILE: list[Any] = [
    {"lr": float("nan")}, {"lr": float("inf")}, {"lr": None}, {"lr": "0.1"}, {"lr": 1e400}, {"lr": -0.0},
    {"epochs": None}, {"epochs": True}, {"epochs": 2.7}, {"epochs": 10**9}, {"epochs": 10**400}, {"epochs": [1]},
    {"model": ["tutorial"]}, {"model": {}}, {"parallel": "ddp; touch MARK"}, {"dataset": "$(touch MARK)"},
    {"devices": "`touch MARK`"}, {"devices": "0,0"}, {"data_dir": ""}, {"data_dir": "a\nb"}, {"data_dir": "x" * 5000},
    {"label": "n" * 10_000}, {"label": "\u202e\0"}, {"extra": 1}, {"__class__": "x"}, {"batch_size": 0},
    {"run": "../../etc"}, {"processes": 10**6}, {"seed": -1}, {"max_steps": -5}, {"label": ["a"]},
    None, [], "text", 7, True, [[]], {"a": {"b": {"c": 1}}},
]  # fmt: skip


@fault(
    "38 kinds of values that are none: NaN, null, lists, 2.7 epochs, 10^400, shell words, 10 kB names",
    "refused, naming the field; no process, no marker",
)
def hostile_values(stage: Stage) -> str:
    server = stage.serve()
    marker = stage.directory / "MARK"
    for values in HOSTILE:
        good = {**GOOD, **values} if isinstance(values, dict) else values
        text = json.dumps({"data": [good]}).replace("MARK", str(marker))
        answer = call(server.port, "start", raw=text)
        assert '"run"' not in answer, f"{values} was taken: {answer}"
        assert "Traceback" not in answer, answer
        if isinstance(values, dict) and not answer.startswith(("4", "5")):
            field = next(iter(values))
            assert field in answer, f"{values}: {answer[:200]}"
    for extra in ([GOOD, 1, 2, 3], []):
        call(server.port, "start", raw=json.dumps({"data": extra, "fn_index": 0, "session_hash": "x" * 10_000}))
    time.sleep(1)
    assert not marker.exists()
    runs = list(iter_runs(server.runs_dir))
    assert len(runs) <= 1, f"{len(runs)} runs"  # extra arguments beside good settings may be ignored
    assert ask(server.port, "GET", "/")[0] == 200
    await_true(lambda: not any(run.state().status.living for run in runs), 60, "the end of the run")
    return f"{len(HOSTILE)} refused; extra arguments started {len(runs)} run with the good settings beside them"


@fault("100 connections that send a byte now and then and never end", "the page answers others in 5 s; 0 runs started")
def slow_connections(stage: Stage) -> str:
    server = stage.serve()
    port = server.port
    slow = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(100)]
    for connection in slow:
        connection.sendall(b"POST " + START.encode() + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n")
    began = time.monotonic()
    answer = call(port, "status", "")
    took = time.monotonic() - began
    for connection in slow:
        connection.close()
    assert '"run": null' in answer, answer
    assert took < 5, f"{took:.1f} s"
    none_started(server)
    return f"answered in {took:.1f} s beside 100 slow ones"


@fault("200 starts are asked for within a moment", "each told; the server lives; never two at work; all can be stopped")
def flood_of_starts(stage: Stage) -> str:
    server = stage.serve()
    port = server.port
    answers: list[str] = []
    long = {**GOOD, "epochs": 1000, "max_steps": 0}
    callers = [threading.Thread(target=lambda: answers.append(call(port, "start", long))) for _ in range(200)]
    for number in range(0, 200, 20):
        for caller in callers[number : number + 20]:
            caller.start()
        for caller in callers[number : number + 20]:
            caller.join(60)
    assert len(answers) == 200, f"{len(answers)} of 200 were answered"
    runs = list(iter_runs(server.runs_dir))
    living = [run for run in runs if run.state().status.living]
    assert len(living) <= 1, f"{len(living)} at work at once"
    for run in runs:
        call(port, "stop", run.id)
    await_true(
        lambda: not any(r.state().status in ("queued", "starting", "running", "stopping") for r in runs),
        60,
        "the end of all",
    )
    return f"{len(runs)} of 200 were taken, {len(living)} at work, all stopped"
