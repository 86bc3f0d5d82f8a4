"""What scenarios ask of an ended run."""

import json
import subprocess
import time
from typing import Any

from tests.conftest import await_true
from tests.faults.stage import Stage, end_of, events
from trainer import checkpoint
from trainer.processes import alive
from trainer.runs import Run

SECONDS_TO_TELL = 10.0  # from the fault to the `end` event, also on a busy machine
START_UP = 90.0  # in which a run on a busy machine surely gets going


def strict(run: Run, torn: bool = False) -> None:
    """Every line of the events is JSON as the standard has it; a full disk may have torn some."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"events.jsonl holds {constant}, which is not JSON")

    lines = run.events_path.read_bytes().splitlines() if run.events_path.is_file() else []
    for line in lines:
        try:
            json.loads(line, parse_constant=refuse)
        except ValueError:
            assert torn, f"events.jsonl holds a torn line: {line[:100]!r}"


def told(run: Run, process: subprocess.Popen, seconds: float = START_UP, torn: bool = False) -> dict[str, Any]:
    """Wait for the trainer's own end; its `end` event."""
    process.wait(seconds)
    strict(run, torn)
    end = end_of(run)
    assert end, f"exit code {process.returncode} and no end event; the log: {last_words(run)}"
    return end


def failed(
    stage: Stage,
    run: Run,
    process: subprocess.Popen,
    *words: str,
    rank: int | None = None,
    cause: str | tuple[str, ...] = "",
    seconds: float = START_UP,
) -> str:
    """The run ends as failed, soon after its last step, blames `rank` and `cause` in these words, and leaves nobody."""
    end = told(run, process, seconds)
    steps = [event["time"] for event in events(run, "step")]
    late = end["time"] - steps[-1] if steps else 0.0
    seen = f"{end['status']}: {end['error']} (rank {end['rank']}, step {end['step']}, cause {end.get('cause')})"
    assert end["status"] == "failed", seen
    allowed = (1, -9) if end.get("cause") == "hang" else (1,)  # one that holds the interpreter can only be killed
    assert process.returncode in allowed, f"exit code {process.returncode} of a failed run"
    assert rank is None or end["rank"] == rank, f"blames rank {end['rank']} instead of {rank}: {seen}"
    for word in words:
        assert word.lower() in str(end["error"]).lower(), f"does not say {word!r}: {seen}"
    if seconds == START_UP:
        assert late <= SECONDS_TO_TELL, f"told only after {late:.1f} s: {seen}"
    assert run.state().status == "failed", run.state().status
    stage.gone(5)
    before = [other["time"] for other in events(run, "end")[:-1]] or [0.0]  # of the run's earlier lives
    logged = max((event["step"] for event in events(run, "step") if event["time"] > before[-1]), default=0)
    assert end["step"] >= logged, f"names an earlier step than the logged {logged}: {seen}"
    if isinstance(cause, str):
        cause = (cause,) if cause else ()
    assert not cause or end.get("cause") in cause, f"cause is not {' or '.join(cause)}: {seen}"
    return seen


def completed(stage: Stage, run: Run, process: subprocess.Popen, seconds: float = 150, torn: bool = False) -> str:
    end = told(run, process, seconds, torn)
    assert (end["status"], process.returncode) == ("completed", 0), f"{end}, exit code {process.returncode}"
    stage.gone(5)
    no_torso(run)
    return f"completed at step {end['step']}"


def goes_on(stage: Stage, run: Run, steps: int = 3, seconds: float = 60) -> str:
    """Training makes further steps from now on."""
    known = run.identity()
    now = max((event["step"] for event in events(run, "step")), default=0)
    stage.at_step(run, now + steps, seconds)
    assert known
    assert alive(known)
    return f"went on beyond step {now + steps}"


def stopped(stage: Stage, run: Run, began: float, within: float = 10) -> str:
    """Since `began` (monotonic) everything has ended within the time, and the run says that it was stopped."""
    stage.gone(max(0.5, within - (time.monotonic() - began)))
    took = time.monotonic() - began
    end = end_of(run)
    assert end.get("status") == "stopped", f"ended as {end or run.state().status}"
    assert run.state().status == "stopped", run.state().status
    no_torso(run)
    loads = ""
    if run.checkpoint_path("last").exists():
        loads = f", last.pt of step {checkpoint.load(run.checkpoint_path('last'))['step']} loads"
    return f"stopped in {took:.1f} s at step {end['step']}{loads}"


def no_torso(run: Run) -> None:
    """Nothing half-written is left in the run directory."""
    torsos = [path.name for path in run.path.rglob(".*")]
    assert not torsos, f"temporary files are left: {torsos}"


def warned(run: Run, *words: str) -> str:
    texts = [event["text"] for event in events(run, "warning")]
    found = [text for text in texts if all(word.lower() in text.lower() for word in words)]
    assert found, f"no warning with {words} among {texts}"
    return found[0]


def last_words(run: Run) -> str:
    try:
        return run.log_path.read_text(errors="replace")[-300:]
    except OSError:
        return "none"


def await_status(run: Run, status: str, seconds: float = START_UP) -> None:
    await_true(lambda: run.state().status == status, seconds, f"{run.id} being {status}")
