"""The server as a whole: who may talk to it, what programs may ask, how it begins and ends."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.conftest import ROOT, await_true
from tests.page import Server, end_runs, serve
from trainer.config import TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run
from ui import guard
from ui.meaning import python
from ui.serve import ServeError, free_port

QUICK = {"dataset": "shapes", "epochs": 1, "max_steps": 2, "devices": "cpu", "batch_size": 32}
LONG = {"dataset": "shapes", "epochs": 1000, "devices": "cpu", "batch_size": 16}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("app")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Client:
    return Client(server.url, verbose=False)


def request(port: int, method: str = "GET", path: str = "/", body: str = "", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body or None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def app(*argv: str, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "app.py"), *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, **options)


def test_importing_the_page_leaves_torch_out():
    code = "import sys, app, ui.serve; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=90, check=False).returncode == 0


def test_it_prints_one_line_with_the_address(server: Server):
    assert request(server.port) == 200
    assert server.lines == [f"Parallel Trainer: http://127.0.0.1:{server.port}"]


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 400), ("127.0.0.1.evil.example", 400), ("", 400), ("localhost", 200), ("127.0.0.1", 200)],
)
def test_only_its_own_names_are_answered(server: Server, host: str, status: int):
    assert request(server.port, Host=host) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [("http://evil.example", 403), ("null", 403), ("http://127.0.0.1.evil.example", 403), ("http://localhost", 200)],
)
def test_pages_of_other_sites_cannot_start_anything(server: Server, origin: str, status: int):
    body = json.dumps({"data": [""]})
    headers = {"Origin": origin, "Content-Type": "application/json"}
    assert request(server.port, "POST", "/gradio_api/call/status", body, **headers) == status


def test_the_private_history_of_gradio_is_off(server: Server):
    assert request(server.port, path="/gradio_api/runs") == 404


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"lr": -1}, "lr"),
        ({"shell": "rm"}, "shell"),
        ({"parallel": "ddp", "devices": "cpu", "processes": 3}, "batch_size"),
        ({"devices": "99"}, "devices"),
        ([1, 2], "settings"),
    ],
)
def test_a_start_with_bad_values_starts_nothing_and_names_the_field(client: Client, server: Server, settings, field):
    before = len(list(iter_runs(server.runs_dir)))
    with pytest.raises(AppError, match=field):
        client.predict(settings, api_name="/start")
    assert len(list(iter_runs(server.runs_dir))) == before


@pytest.mark.parametrize("run", ["../..", "20260101-000000-single-abcd", "/etc/passwd", 7, {"a": 1}])
def test_runs_that_are_not_here_cannot_be_asked_for_or_stopped(client: Client, run):
    for name in ("/status", "/stop"):
        with pytest.raises(AppError, match="there is no run"):
            client.predict(run, api_name=name)


def test_only_these_endpoints_are_published(client: Client):
    published = client.view_api(return_format="dict", print_info=False)
    assert sorted(published["named_endpoints"]) == ["/predict", "/start", "/status", "/stop"]
    assert not published["unnamed_endpoints"]


@pytest.mark.slow
def test_a_program_starts_a_run_and_sees_it_complete(client: Client, server: Server):
    started = client.predict(QUICK, api_name="/start")["run"]
    await_true(lambda: client.predict(started, api_name="/status")["status"] == "completed", 120, "the end of the run")
    known = client.predict("", api_name="/status")
    assert known["run"] == started
    assert known["step"] == 2


@pytest.mark.slow
def test_ctrl_c_leaves_the_run_at_work_and_says_how_to_stop_it(tmp_path: Path, trainer):
    with serve(tmp_path) as server:
        started = Client(server.url, verbose=False).predict(LONG, api_name="/start")["run"]
        run = Run(server.runs_dir / started)
        await_true(lambda: run.state().status == "running", 120, "the first event of the run")
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0
        assert run.state().status == "running"
        assert server.lines[-1] == (
            f"{started} trains on. To stop it: {python()} -m trainer stop {started} --runs-dir {server.runs_dir}"
        )
        with serve(tmp_path) as second:  # a new server finds it, lets another wait for it, and stops it
            client = Client(second.url, verbose=False)
            waiting = client.predict(QUICK, api_name="/start")
            assert waiting["status"] == "queued"
            assert client.predict("", api_name="/status")["run"] == started
            assert client.predict(waiting["run"], api_name="/stop")["status"] == "stopped"
            assert client.predict(started, api_name="/stop")["status"] in ("stopping", "stopped")
            await_true(lambda: not run.state().status.living, 60, "the end of the run")
            assert run.state().status == "stopped"
            end_runs(second.runs_dir)


@pytest.fixture
def busy(server: Server, actor) -> Iterator[Run]:
    """A run of somebody else that holds every device until the test is over."""
    run = Run.create(server.runs_dir, TrainConfig(dataset="shapes"), waits_here=True)  # not the server
    process = actor(run, "claim")
    yield run
    process.stdin.close()
    process.wait(20)
    end_runs(server.runs_dir)
    for each in iter_runs(server.runs_dir):
        await_true(lambda each=each: not each.state().status.living, 20, "the end of the runs")
        each.delete()


def test_fifty_starts_in_a_row_wait_in_their_order_and_all_can_be_cancelled(client: Client, server: Server, busy: Run):
    started = [client.predict(QUICK, api_name="/start") for _ in range(50)]
    assert {each["status"] for each in started} == {"queued"}
    asked = time.monotonic()
    assert client.predict("", api_name="/status")["run"] == busy.id
    assert request(server.port) == 200
    assert time.monotonic() - asked < 3
    stopped = [client.predict(each["run"], api_name="/stop") for each in started]
    assert {each["status"] for each in stopped} == {"stopped"}
    with pytest.raises(AppError, match="it is stopped"):
        client.predict(started[0]["run"], api_name="/stop")


def test_status_without_an_id_is_the_run_at_work_else_the_next_one(client: Client, server: Server, busy: Run):
    first, second = (client.predict(QUICK, api_name="/start")["run"] for _ in range(2))
    assert client.predict("", api_name="/status")["run"] == busy.id
    assert client.predict(second, api_name="/status")["status"] == "queued"
    assert client.predict(first, api_name="/stop")["status"] == "stopped"


def test_ctrl_c_says_which_runs_are_queued(tmp_path: Path, actor):
    with serve(tmp_path) as server:
        busy = Run.create(server.runs_dir, TrainConfig(dataset="shapes"), waits_here=True)  # not the server
        process = actor(busy, "claim")
        client = Client(server.url, verbose=False)
        waiting = [client.predict(QUICK, api_name="/start")["run"] for _ in range(2)]
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0
        assert [line.split(". To")[0] for line in server.lines[1:]] == [
            f"{busy.id} trains on",
            *(f"{run} is queued and starts when its devices are free" for run in waiting),
        ]
        assert server.lines[-1].endswith(f"trainer stop {waiting[1]} --runs-dir {server.runs_dir}")
        for run in waiting:
            Run(server.runs_dir / run).delete()
        process.stdin.close()
        process.wait(20)


def test_other_machines_get_in_with_a_password_only():
    refused = app("--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 2
    assert "--auth" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_a_password_guards_every_door(tmp_path: Path):
    users = tmp_path / "users"
    users.write_text("ada:engine\n")
    with serve(tmp_path, "--auth", str(users)) as server:
        body = json.dumps({"data": [QUICK]})
        for method, path in (("GET", "/config"), ("GET", "/gradio_api/info"), ("POST", "/gradio_api/call/start")):
            assert request(server.port, method, path, body, **{"Content-Type": "application/json"}) == 401
        assert Client(server.url, auth=("ada", "engine"), verbose=False).predict("", api_name="/status") == {
            "run": None
        }


@pytest.mark.parametrize("text", ["", "ada", "ada:", ":engine"])
def test_a_password_file_without_passwords_is_refused(tmp_path: Path, text: str):
    (tmp_path / "users").write_text(text)
    with pytest.raises(ValueError, match="name:password"):
        guard.read_users(tmp_path / "users")


def test_passwords_are_read_from_the_environment_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(guard.AUTH_VARIABLE, "ada:engine:no. 1")
    assert guard.read_users(None) == {"ada": "engine:no. 1"}


def test_guessing_a_password_is_cut_short():
    login = guard.Login({"ada": "engine"})
    assert login("ada", "engine")
    assert not any(login(name, "guess") for name in ("ada", "bob") for _ in range(5))
    assert not login("ada", "engine")


def test_a_port_that_is_taken_is_said_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = app("--port", str(port))
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        f"error: port {port} is taken by another program: give another, or 0 for any free one"
    ]


def test_port_0_is_any_free_one():
    port = free_port("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ServeError, match="taken"):
        free_port("127.0.0.1", port)


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_refused(port: str):
    assert app(f"--port={port}").returncode == 2
