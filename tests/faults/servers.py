"""Servers that die or are two, with runs at work and runs that wait."""

import json
import socket
import time

from gradio_client import Client

from tests.conftest import ROOT, await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.queueing import QUICK, TURN, begun, is_over, one_at_a_time
from tests.faults.stage import SABOTAGE, Stage, events, in_background
from tests.page import serve
from trainer.run_list import iter_runs
from trainer.runs import Run

API = {"dataset": "shapes", "epochs": 1, "max_steps": 3, "devices": "cpu", "batch_size": 32}


def queue_by_api(url: str, count: int) -> list[str]:
    client = Client(url, verbose=False)
    return [client.predict(API, api_name="/start")["run"] for _ in range(count)]


@fault(
    "the server is killed while one of its runs trains and three wait; it is started anew", "all complete, each once"
)
def server_killed_with_a_queue(stage: Stage) -> str:
    with serve(stage.directory, PARALLEL_TRAINER_CACHE=str(stage.cache), FAULT_STAGE=stage.mark) as server:
        runs = [Run(server.runs_dir / name) for name in queue_by_api(server.url, 4)]
        await_true(lambda: begun(runs[0]), TURN, "the begin of the first")
        server.process.kill()
        server.wait()
        again = stage.serve()
        assert again.url
        await_true(lambda: all(map(is_over, runs)), 240, "the end of all four")
    assert {run.state().status for run in runs} == {"completed"}, [str(run.state().status) for run in runs]
    one_at_a_time(runs)
    return "four completed, each once"


@fault("two servers on one runs directory are asked for three runs each at once", "six complete, one at a time, once")
def two_servers(stage: Stage) -> str:
    urls = [stage.serve().url, stage.serve().url]
    names: list[str] = []
    callers = [in_background(lambda url=url: names.extend(queue_by_api(url, 3))) for url in urls]
    for caller in callers:
        caller.join(60)
    assert len(names) == 6, f"{len(names)} of 6 were taken"
    runs = [Run(stage.runs_dir / name) for name in names]
    await_true(lambda: all(map(is_over, runs)), 300, "the end of all six")
    one_at_a_time(runs)
    return "six completed, one after the other"


@fault("the server is killed between the launch of a trainer and its claim", "the run begins once and completes")
def server_killed_before_the_claim(stage: Stage) -> str:
    slow = {"SABOTAGE": "at=tyro do=sleep:5", "PYTHONPATH": f"{SABOTAGE}:{ROOT}"}  # only a trainer imports it
    mine = {"PARALLEL_TRAINER_CACHE": str(stage.cache), "FAULT_STAGE": stage.mark}
    with serve(stage.directory, **slow, **mine) as server:
        (name,) = queue_by_api(server.url, 1)
        run = Run(server.runs_dir / name)
        assert not run.has_claim
        server.process.kill()
        server.wait()
        again = stage.serve()
        assert again.url
        await_true(lambda: is_over(run), 120, "the end of the run")
    assert run.state().status == "completed", run.state().status
    one_at_a_time([run])
    return "completed, begun once"


@fault("the server is killed while a run of it trains", "training goes on; a new server sees and stops it")
def server_killed(stage: Stage) -> str:
    with serve(stage.directory, PARALLEL_TRAINER_CACHE=str(stage.cache), FAULT_STAGE=stage.mark) as server:
        client = Client(server.url, verbose=False)
        name = client.predict({**API, "epochs": 1000, "max_steps": 0}, api_name="/start")["run"]
        run = Run(server.runs_dir / name)
        stage.at_step(run, 1)
        server.process.kill()
        server.wait()
        expect.goes_on(stage, run, 20)
        again = Client(stage.serve().url, verbose=False)
        assert again.predict("", api_name="/status")["run"] == name
        began = time.monotonic()
        again.predict(name, api_name="/stop")
        await_true(lambda: not run.state().status.living, 10, "the end of the run")
    return f"went on; stopped by another server in {time.monotonic() - began:.1f} s as {run.state().status}"


@fault("a draft of a run directory and a lock are left by a killed program", "lists and starts take no notice")
def leftovers_in_the_runs_directory(stage: Stage) -> str:
    run = stage.new_run(QUICK)
    (stage.runs_dir / ".20260101-000000-single-abcd").mkdir()
    (stage.runs_dir / ".lock").write_text("stale")
    (stage.runs_dir / "20260101-000000-single-abcd").mkdir()
    (stage.runs_dir / "20260101-000000-single-ffff").write_text("a file")
    seen = expect.completed(stage, run, stage.train(run))
    assert [known.id for known in iter_runs(stage.runs_dir)] == [run.id]
    return seen


@fault(
    "the program that asked for a run goes away before it has the answer", "the run begins and completes all the same"
)
def caller_goes_away(stage: Stage) -> str:
    server = stage.serve()
    body = json.dumps({"data": [API]}).encode()
    head = f"POST /gradio_api/call/start HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
    await_true(lambda: list(iter_runs(server.runs_dir)), 20, "the run")
    (run,) = iter_runs(server.runs_dir)
    await_true(lambda: is_over(run), 90, "the end of the run")
    assert run.state().status == "completed", run.state().status
    return "completed"


@fault(
    "20 pairs of Start and Stop in a row, each Stop at another moment; then 4 Starts at once",
    "one terminal state each, nothing left, nothing begun twice, never two at work",
)
def start_stop_pairs(stage: Stage) -> str:
    server = stage.serve()
    client = Client(server.url, verbose=False)
    settings = {**API, "epochs": 1000, "max_steps": 0}
    for number in range(20):
        name = client.predict(settings, api_name="/start")["run"]
        time.sleep(number * 0.3)
        client.predict(name, api_name="/stop")
        run = Run(server.runs_dir / name)
        await_true(lambda run=run: is_over(run), 12, f"the end of run {number}")
    names: list[str] = []
    callers = [in_background(lambda: names.append(queue_by_api(server.url, 1)[0])) for _ in range(4)]
    for caller in callers:
        caller.join(60)
    assert len(set(names)) == 4, names
    runs = list(iter_runs(server.runs_dir))
    await_true(lambda: all(map(is_over, runs)), 240, "the end of all")
    ends = {run.id: len(events(run, "end")) for run in runs}
    assert set(ends.values()) == {1}, ends
    statuses = [str(run.state().status) for run in runs]
    assert (statuses.count("stopped"), statuses.count("completed")) == (20, 4), statuses
    one_at_a_time([run for run in runs if run.id in names])
    left = stage.left()
    assert not left, stage.describe(left)
    steps = [run.last_step() for run in runs if run.id not in names]
    return f"20 stopped between step {min(steps)} and {max(steps)}, 4 completed one after the other"
