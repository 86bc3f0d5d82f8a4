"""Groups over a network: hosts without names, loopback down, torchrun's agents and links that are cut."""

import os
import socket
import subprocess
import sys
import time

from tests.conftest import await_true
from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.environment import completes, in_shell
from tests.faults.stage import DDP, LONG, STEP, Stage, events
from trainer.runs import Run


@fault("the host's name cannot be resolved (gloo looks it up)", "completed", root=True)
def host_name_unknown(stage: Stage) -> str:
    return completes(stage, DDP, prefix=("unshare", "-u", *in_shell("hostname no-such-host.invalid")))


@fault("the loopback interface is down", "failed in words, at the latest after silence_limit; 0 left", root=True)
def loopback_down(stage: Stage) -> str:
    run = stage.new_run(DDP, silence_limit=20)
    return expect.failed(stage, run, stage.train(run, prefix=("unshare", "-n")), seconds=80)


@fault("loopback goes down in mid-run, in both directions without a word", "failed or gone on; Stop in 10 s", root=True)
def loopback_lost(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = stage.train(run, prefix=("unshare", "-n", *in_shell("ip link set lo up")))
    stage.at_step(run)
    subprocess.run(["nsenter", "-t", str(process.pid), "-n", "ip", "link", "set", "lo", "down"], check=True)
    time.sleep(3)
    began = time.monotonic()
    stage.trainer("stop", run.path)
    return expect.stopped(stage, run, began, 13)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def agent(stage: Stage, run: Run, *options: str, order: str = "", prefix: tuple[str, ...] = (), **env: str):
    argv = (*prefix, sys.executable, "-m", "torch.distributed.run", *options, "-m", "--", "trainer", "train")
    log = (stage.directory / f"agent-{time.monotonic_ns()}.log").open("w")
    stage.exits.callback(log.close)
    more = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **env}
    return stage.program(*argv, "--run", run.path, sabotage=order, env=more, stdout=log, stderr=log)


@fault("torchrun's agent is killed (its workers live in sessions of their own)", "the ranks are gone in 10 s")
def torchrun_agent_killed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = agent(stage, run, "--standalone", "--nproc-per-node=2")
    stage.at_step(run)
    process.kill()
    process.wait(5)
    took = stage.gone(10)
    return f"gone in {took:.1f} s; {run.state().status}"


@fault("rank 1 of a torchrun group is killed", "failed: rank 1; agent's exit code not 0; 0 left in 10 s")
def torchrun_rank_killed(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    process = agent(stage, run, "--standalone", "--nproc-per-node=2", order=f"{STEP} step=3 rank=1 do=kill:SIGKILL")
    process.wait(90)
    stage.gone(10)
    end = (events(run, "end") or [{}])[-1]
    assert process.returncode != 0
    assert (end.get("status"), end.get("rank")) == ("failed", 1), f"{run.state().status}, {end}"
    return f"{end['error']}; exit code {process.returncode}"


@fault("a torchrun group is stopped by `python -m trainer stop`", "stopped with a checkpoint in 10 s; 0 left")
def torchrun_stopped(stage: Stage) -> str:
    run = stage.new_run(DDP, LONG)
    agent(stage, run, "--standalone", "--nproc-per-node=2")
    stage.at_step(run)
    began = time.monotonic()
    stage.trainer("stop", run.path)
    return expect.stopped(stage, run, began, 18)


@fault("two torchrun agents; a rank is killed after epoch 2 of 4", "both restart, resume at epoch 2 and exit 0 in 60 s")
def torchrun_restarts(stage: Stage) -> str:
    run = stage.new_run(DDP, epochs=4)
    once = stage.directory / "once"  # the sabotage of the second generation must not happen
    order = f"{STEP} step=14 rank=1 do=once:{once}+kill:SIGKILL"
    port = free_port()
    common = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=3", "--rdzv-id=job", "--rdzv-backend=c10d")
    meet = (f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1")
    agents = [agent(stage, run, *common, *meet, order=order) for _ in range(2)]
    began = time.monotonic()
    for process in agents:
        process.wait(max(1, 150 - (time.monotonic() - began)))
    codes = [process.returncode for process in agents]
    assert codes == [0, 0], f"exit codes {codes}; {run.state().status}: {run.state().error}"
    assert [event["step"] for event in events(run, "start")][1:] == [12], [e["step"] for e in events(run, "start")]
    return f"exit codes 0 and 0, resumed at step 12, {run.state().status}"


def two_hosts(stage: Stage) -> list[str]:
    """Two network namespaces with a cable between them; their names."""
    names = [f"fault-{os.getpid()}-{letter}" for letter in "ab"]
    ip = ["ip"]
    for name in names:
        subprocess.run([*ip, "netns", "add", name], check=True)
        stage.exits.callback(subprocess.run, [*ip, "netns", "del", name], check=False)
    pair = [f"v{os.getpid() % 100000}{letter}" for letter in "ab"]
    subprocess.run([*ip, "link", "add", pair[0], "type", "veth", "peer", "name", pair[1]], check=True)
    for number, (name, link) in enumerate(zip(names, pair, strict=True), start=1):
        subprocess.run([*ip, "link", "set", link, "netns", name], check=True)
        inside = ["ip", "-n", name]
        subprocess.run([*inside, "link", "set", link, "name", "cable"], check=True)
        subprocess.run([*inside, "addr", "add", f"10.77.0.{number}/24", "dev", "cable"], check=True)
        subprocess.run([*inside, "link", "set", "cable", "up"], check=True)
        subprocess.run([*inside, "link", "set", "lo", "up"], check=True)
    return names


@fault(
    "two hosts, two agents; the cable between them is cut",
    "told as failed within silence_limit + 30 s; Stop ends all",
    root=True,
)
def cable_cut(stage: Stage) -> str:
    limit = 15
    run = stage.new_run(DDP, LONG, silence_limit=limit)
    names = two_hosts(stage)
    common = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=0", "--rdzv-id=job", "--rdzv-backend=c10d")
    for number, name in enumerate(names, start=1):
        meet = (
            "--rdzv-endpoint=10.77.0.1:29400",
            f"--local-addr=10.77.0.{number}",
            f"--rdzv-conf=is_host={2 - number}",
        )
        inside = ("ip", "netns", "exec", name)
        agent(stage, run, *common, *meet, prefix=inside, GLOO_SOCKET_IFNAME="cable")
    stage.at_step(run)
    subprocess.run(["ip", "-n", names[0], "link", "set", "cable", "down"], check=True)
    began = time.monotonic()
    await_true(lambda: not run.state().status.living, limit + 30, "the end of the run")
    took = time.monotonic() - began
    stage.trainer("stop", run.path)
    stage.gone(30)
    return f"{run.state().status} after {took:.0f} s: {run.state().error}"
