"""What strangers may send: every input is refused in words, starts nothing, and leaves the server as it was."""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.page import Server, serve
from trainer.config import TrainConfig
from trainer.run_list import iter_runs
from trainer.runs import Run
from ui.form import FIELDS

NUMBERS = [name for name in FIELDS if TrainConfig.model_fields[name].annotation in (int, float)]
TEXTS = [name for name in FIELDS if TrainConfig.model_fields[name].annotation is str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_starts(server: Server) -> Iterator[None]:
    before = len(server.lines)
    yield
    assert list(iter_runs(server.runs_dir)) == []
    ours = [line for line in server.lines[before:] if f"{ROOT}/ui" in line or f"{ROOT}/trainer" in line]
    before_gradio = ("guard.py", "page_version.py")  # an error of Gradio's own passes through these
    assert [line for line in ours if not any(name in line for name in before_gradio)] == []
    assert server.process.poll() is None


def post(server: Server, path: str, body: str) -> tuple[int, str]:
    return ask(server, "POST", path, body)


def ask(server: Server, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, f"/gradio_api/{path}", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def call(server: Server, name: str, data: str) -> str:
    """Call an event by its name over plain HTTP, with any text as its data; returns what the client is told."""
    status, text = post(server, f"call/{name}", f'{{"data": {data}}}')
    if status == 200:
        text = ask(server, "GET", f"call/{name}/{json.loads(text)['event_id']}")[1]
    assert "Traceback" not in text
    assert "site-packages" not in text
    return text


REFUSED: list[tuple[str, Any]] = [
    *((name, value) for name in NUMBERS for value in ("1", None, True, [1], {"a": 1}, 10**400, -(10**400))),
    *((name, value) for name in TEXTS for value in (1, None, True, ["x"], {"a": 1}, "a\0b", "a\nb", "a\u202eb")),
    *((name, "x" * 10_000) for name in TEXTS),
    ("epochs", 10**9),
    ("epochs", -0.0),
    ("epochs", 1.5),
    ("lr", -0.0),
    ("nesterov", 1),
    ("compile", "true"),
    ("dataset", "../../etc"),
    ("model", "resnet9; rm -rf /"),
    ("parallel", "$(touch x)"),
    ("devices", "0; touch x"),
    ("devices", "../../dev/null"),
    ("devices", "0,0"),
    ("devices", "\u0660"),  # a digit, though not an ASCII one
    ("run", "../../etc"),
    ("__class__", "x"),
    ("data_dir\0", "x"),
    ("", 1),
]  # fmt: skip


def described(case: tuple[str, Any]) -> str:
    return f"{case[0]!r}={str(case[1])[:12]!r}"


def test_every_bad_setting_is_refused_with_its_name(server: Server):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda case: call(server, "start", json.dumps([{case[0]: case[1]}])), REFUSED))
    wrong = []
    for (name, value), told in zip(REFUSED, answers, strict=True):
        reason = json.loads(told.split("data: ", 1)[1])
        if "event: error" not in told or not reason["error"].startswith(f"{name}: "):
            wrong.append(f"{described((name, value))}: {told}")
    assert wrong == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ('[{"lr": NaN}]', "lr: nan must be a finite number"),
        ('[{"lr": Infinity, "epochs": -Infinity}]', "epochs: -inf must be a whole number"),
        ('[{"lr": 1e999}]', "lr: inf must be a finite number"),
        ('[{"epochs": 1' + "0" * 5000 + "}]", "error parsing the body"),
        (json.dumps([{f"key{i}": i for i in range(1000)}]), "key0: is not a setting"),
        ("[" * 900 + "]" * 900, "settings: must be an object"),
        ('[{"lr": ' + "[" * 900 + "]" * 900 + "}]", "must be a number"),
        ('[{"lr": ' + "[" * 100_000 + "]" * 100_000 + "}]", "error parsing the body"),
        ("[]", "start takes 1 value, not 0"),
        ("[{}, {}]", "start takes 1 value, not 2"),
        ("{}", "valid list"),
        ("null", "valid list"),
        ('"x"', "valid list"),
        ("[null]", "settings: must be an object"),
        ("[[]]", "settings: must be an object"),
        ("[7]", "settings: must be an object"),
        ("{", "JSON decode error"),
    ],
    ids=lambda text: text[:24],
)
def test_what_is_no_list_with_one_object_of_settings_is_refused(server: Server, data: str, said: str):
    told = call(server, "start", data)
    assert said in told
    assert len(told) < 3000


GONE = "20260101-000000-single-abcd"


@pytest.mark.parametrize("name", ["stop", "status"])
def test_only_ids_of_runs_are_taken(server: Server, name: str):
    for run in ("../../etc", "/etc/passwd", "..", "2\0", f"{GONE}\n", GONE, "x" * 10_000, 7, True, ["a"], {"a": 1}):
        assert "there is no run" in call(server, name, json.dumps([run]))


LIVE: list[Any] = [
    *(None, 7, -1, 1e308, True, "x", "\0", [], [1], {}),
    *({"run": value} for value in (None, "../../etc", ["a"], {"a": 1}, 1e308, GONE)),
    *({"runs": value} for value in (None, "x", ["../.."], [["a"], None, {}, GONE], {"a": 1})),
    *({"values": value} for value in (7, {"lr": [1], "devices": {"a": 1}, "dataset": ["x"]})),
]


def private_events(server: Server) -> list[tuple[str, int]]:
    """(name, number of values) of every event of the Train and Runs tabs."""
    known = json.loads(ask_config(server))["dependencies"]
    names = [(each["api_name"], len(each["inputs"])) for each in known if each["api_visibility"] == "private"]
    end = next(i for i, (name, _) in enumerate(names) if name == "opened")  # the Predict tab has tests of its own
    return names[:end]


def ask_config(server: Server) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", "/config")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_the_handlers_behind_the_page_take_anything_and_act_on_nothing(server: Server):
    events = private_events(server)
    assert {"_on_start", "_on_stop", "_on_resume", "_on_state", "pick", "stop_1", "delete"} <= {
        name for name, _ in events
    }
    calls = [(name, json.dumps([value] * count)) for name, count in events for value in LIVE]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda each: call(server, *each), calls))
    assert [(*asked, told) for asked, told in zip(calls, answers, strict=True) if "event: complete" not in told] == []


def test_hostile_fields_in_the_form_are_marked_and_start_nothing(server: Server):
    good = list(TrainConfig(dataset="shapes").model_dump().values())
    for value in (None, [], ["auto", {"a": 1}], {"a": 1}, 1e308, "\0", "x" * 10_000, True):
        if value == []:  # a picker that was emptied is auto
            continue
        told = call(server, "_on_start", json.dumps([{"run": None}, *([value] * len(good))]))
        assert "Not started: fix the settings that are marked" in told
    assert f"takes {len(good) + 1} values, not 1" in call(server, "_on_start", "[null]")


@pytest.mark.parametrize(
    "body",
    [
        {"data": [None] * 30, "fn_index": 7, "session_hash": "x"},
        {"data": [None], "fn_index": 0, "session_hash": "x"},
        {"data": [{}], "fn_index": 10**6, "session_hash": "x"},
        {"data": [{}], "fn_index": -1, "session_hash": "x"},
        {"data": [{}], "fn_index": "0", "session_hash": None},
        {"data": {}, "fn_index": 0},
        {"fn_index": [0]},
        [],
    ],
)
def test_raw_events_with_wrong_numbers_start_nothing(server: Server, body: Any):
    status, text = post(server, "queue/join", json.dumps(body))
    assert status in (200, 400, 404, 422, 500)
    assert "Traceback" not in text
    assert post(server, "call/status", '{"data": [""]}')[0] == 200


@pytest.mark.parametrize("function", ["points", "log", "rows"])
def test_what_the_charts_and_the_table_ask_may_be_anything(server: Server, function: str):
    components = json.loads(ask_config(server))["components"]
    served = [c["id"] for c in components if function in (c["props"].get("server_fns") or [])]
    assert served
    run = {"run": "../../etc", "points": -1, "tests": 1e308, "version": [], "seen": {}}
    for data in (*LIVE, {"runs": [run] * 99, "bins": "x"}, {"version": [1], "server": {}}):
        body = {"data": data, "component_id": served[0], "fn_name": function, "session_hash": "x"}
        status, text = post(server, "component_server", json.dumps(body))
        assert status == 200
        assert isinstance(json.loads(text), dict)


def test_a_run_that_exists_is_acted_on_only_by_its_whole_id(server: Server):
    run = Run.create(server.runs_dir, TrainConfig(dataset="images", data_dir="/nowhere"), waits_here=True)
    try:
        run.withdraw("stopped", "for the test")
        for wrong in (run.id[:-1], f"{run.id}/", f"./{run.id}", f"{run.id}\n", f"../runs/{run.id}"):
            assert "there is no run" in call(server, "stop", json.dumps([wrong]))
            call(server, "delete", json.dumps([{"runs": [wrong]}]))
        assert run.path.exists()
    finally:
        run.delete()
