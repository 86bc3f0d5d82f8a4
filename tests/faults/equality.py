"""Wrong numbers are faults, too: these rows perform the tests that the numbers have already."""

import subprocess
import sys

from tests.conftest import ROOT
from tests.faults.catalogue import fault
from tests.faults.stage import Stage


def passes(stage: Stage, file: str, *words: str) -> str:
    """The tests of a file whose names hold one of these words."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", f"tests/{file}"]
    chosen = ["-k", " or ".join(words)] if words else []
    environment = stage.environment()
    done = subprocess.run([*argv, *chosen], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, last
    assert "passed" in last, last
    return last


@fault("61 and 25 pictures for 1, 2 and 3 ranks, a batch smaller than the group", "equal to 1e-12; each counted once")
def uneven_shares(stage: Stage) -> str:
    return passes(stage, "test_launch.py", "ddp_trains_like_one_process", "batchnorm_networks")


@fault("OMP_NUM_THREADS is not set and two ranks share the cores", "each has its share of threads")
def threads_are_shared(stage: Stage) -> str:
    return passes(stage, "test_launch.py", "ranks_share_the_cores")


@fault("every kind of picture that is broken, huge, animated, 16-bit or none", "an answer or one sentence each")
def hostile_pictures(stage: Stage) -> str:
    return passes(stage, "test_pictures.py")
