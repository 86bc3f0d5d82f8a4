"""The faults that only GPUs have. They need two."""

import os
import signal

from tests.faults import expect
from tests.faults.catalogue import fault
from tests.faults.stage import LONG, STEP, Stage, events

TWO = {"parallel": "ddp", "processes": 2, "devices": "auto"}


@fault("rank 1 asks its GPU for more memory than there is", "failed: rank 1, cause memory, advice; 0 left", gpu=True)
def gpu_memory_runs_out(stage: Stage) -> str:
    run = stage.new_run(TWO, LONG)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=memory:cuda")
    return expect.failed(stage, run, process, "batch", rank=1, cause="memory")


@fault("rank 1 of a group over NCCL is killed", "failed in 10 s: rank 1, SIGKILL; 0 left; the GPU is free", gpu=True)
def gpu_rank_killed(stage: Stage) -> str:
    run = stage.new_run(TWO, LONG)
    process = stage.train(run)
    stage.at_step(run)
    assert events(run, "start")[0]["backend"] == "nccl"
    os.kill(stage.ranks(run, 2)[1][0], signal.SIGKILL)
    return expect.failed(stage, run, process, "SIGKILL", rank=1, cause=("signal", "memory"))


@fault("rank 1 hangs, so rank 0 waits within NCCL", "failed after silence_limit: rank 1, hang; 0 left", gpu=True)
def gpu_rank_hangs(stage: Stage) -> str:
    run = stage.new_run(TWO, LONG, silence_limit=30)
    process = stage.train(run, f"{STEP} step=3 rank=1 do=sleep")
    return expect.failed(stage, run, process, rank=1, cause="hang", seconds=150)


@fault("Stop while rank 0 waits within NCCL for a rank that hangs", "killed: stopped in 10 s; 0 left", gpu=True)
def gpu_stop_while_hanging(stage: Stage) -> str:
    from tests.faults.stopping import stop_at_step

    return stop_at_step(stage, f"{STEP} step=3 rank=1 do=sleep", 2, 3, **TWO)
