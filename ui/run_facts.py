"""A run in words for the head of its chart, and the end of its log."""

import re
import time
from typing import Any

from trainer.config import TrainConfig
from trainer.files import open_regular
from trainer.processes import is_suspended, recorded_identity
from trainer.runs import Run, RunStatus
from trainer.verdict import verdict
from ui.curves import History
from ui.waiting import Waiting, in_words

LOG_LINES = 60
LOG_BYTES = 32_768  # read from the end; more than 60 lines of a trainer that means well
SHOWN_WARNINGS = 8
MODES = {"single": "Single device", "dp": "DataParallel", "ddp": "DistributedDataParallel"}
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def facts(history: History, waiting: Waiting | None = None) -> dict[str, Any]:
    """Name, what runs where, progress, numbers and troubles, as texts.

    Changes only when an event arrives, its place in the queue changes (`waiting`), or its process is held up.
    """
    state = history.state
    try:
        config = history.run.config()
    except ValueError:  # a config.json from another version: show what the events tell
        config = TrainConfig()
    total, step = _count(state.start.get("total_steps")), history.last_step
    return {
        "name": config.label or history.run.id,
        "short": f"{config.label} ({config.parallel})" if config.label else history.run.id[16:],
        "setup": _setup(config, state.start),
        "progress": _progress(history, waiting)[:200],
        "share": round(min(1.0, step / total), 4) if total else None,
        "left": _left(history, total - step) if state.status == RunStatus.RUNNING else "",
        "facts": _numbers(history, config, step, total),
        "reason": _held_up(history.run, state.status) or sentence(state.error[:2000]),
        "notes": _notes(history),
        "verdict": _verdict(history),
    }


def _progress(history: History, waiting: Waiting | None) -> str:
    """What it does or waits for besides training."""
    state = history.state
    if state.status == RunStatus.QUEUED:
        return in_words(waiting) if waiting else "Queued"
    if state.status == RunStatus.STOPPED:  # nothing when it was asked to and did
        return sentence(str(state.end.get("error") or ""))
    return state.progress


def _verdict(history: History) -> str:
    """What limits the run; "" while nothing is known."""
    step = history.mean_step
    return verdict(history.state.start, step)[:600] if step else ""


def _held_up(run: Run, status: RunStatus) -> str:
    """Says so if the process that trains the run, or waits in a shell to do so, does not get on."""
    if not status.living and status != RunStatus.QUEUED:
        return ""
    known = recorded_identity(run.process() or run.launch())
    if known is None or not is_suspended(known):
        return ""
    return f"Suspended: its process was stopped by a signal (as by Ctrl-Z); fg or kill -CONT {known[0]} lets it go on."


def elapsed(history: History) -> str:
    """How long the run has trained; the clock goes on while it is alive."""
    seconds, state = history.elapsed, history.state
    has_started = state.start.get("time", 0) >= state.process.get("started", 0)  # this process, not one before it
    if state.status.living and has_started and history.origin is not None:
        seconds = max(seconds, time.time() - history.origin)
    return duration(seconds) if seconds > 0 else ""


def _numbers(history: History, config: TrainConfig, step: int, total: int) -> list[tuple[str, str]]:
    """Always the same labels in the same order, so that nothing moves on the page."""
    latest = history.recent[-1] if history.recent else None
    test = history.recent_tests[-1] if history.recent_tests else None
    rate = history.images_per_second
    loss = "not finite" if latest and latest.loss is None else _digits(latest and latest.loss, ".4f")
    return [
        ("Epoch", f"{_short(latest and latest.epoch)} / {config.epochs}"),
        ("Step", f"{step:,} / {total:,}" if total else "-"),
        ("Images/s", _digits(rate, ",.0f" if (rate or 0) >= 100 else ".3g")),
        ("Training loss", loss),
        ("Test accuracy", _digits(test and test.accuracy, ".2f", " %")),
        ("Best", _digits(history.best_accuracy, ".2f", " %")),
    ]


def _setup(config: TrainConfig, start: dict[str, Any]) -> str:
    """As in 'DistributedDataParallel, 2 ranks, AMD EPYC, gloo, fp32, channels_last, 1 thread each'."""
    parts = [MODES[config.parallel]]
    ranks = _count(start.get("world_size"))
    if config.parallel == "ddp" and ranks:
        parts.append(f"{ranks} rank{'s' if ranks != 1 else ''}")
    parts.append(devices(start.get("devices"), config.devices))
    parts += [str(start[key]) for key in ("backend", "precision", "memory_format") if start.get(key)]
    threads = _count(start.get("threads"))
    if threads:
        parts.append(f"{threads} thread{'s' if threads != 1 else ''}{' each' if ranks > 1 else ''}")
    if start.get("allocator", "system") != "system":
        parts.append(str(start["allocator"]))
    return ", ".join(parts)[:300]


def devices(names: Any, wished: str) -> str:
    """As in '2 x NVIDIA H200'; what was asked for while it is not known what was got."""
    if not isinstance(names, list) or not names:
        return wished
    plain = [re.sub(r"^GPU \d+ ", "", str(name)) for name in names]
    kinds = dict.fromkeys(plain)
    return ", ".join(f"{plain.count(kind)} x {kind}" if plain.count(kind) > 1 else kind for kind in kinds)


def _left(history: History, steps: int) -> str:
    pace = history.seconds_per_step
    return f"about {duration(pace * steps, rough=True)} left" if pace and steps > 0 else ""


def _notes(history: History) -> list[str]:
    notes = [text[:300] for text in history.state.warnings[-SHOWN_WARNINGS:]]
    evaluation = history.state.evaluation
    if evaluation.get("checksum"):
        notes.append(
            f"All {_count(history.state.start.get('world_size'))} ranks held the same weights at step "
            f"{_count(evaluation.get('step')):,}, bit for bit (checksum {str(evaluation['checksum'])[:8]})."
        )
    if history.num_nonfinite:
        more = history.num_nonfinite - 1
        also = f" and at {more} later point{'s' if more > 1 else ''}" if more else ""
        notes.append(
            f"The training loss was not a finite number at step {history.first_nonfinite:,}{also} (red triangles)."
        )
    return notes


def duration(seconds: float, rough: bool = False) -> str:
    """As in '12 s', '3 min 20 s', '2 h 5 min'; `rough` gives the largest unit only, seconds in tens."""
    whole = max(0, round(seconds))
    if rough and whole < 60:
        return f"{max(10, -(-whole // 10) * 10)} s"
    if rough and whole < 5400:
        return f"{max(1, round(whole / 60))} min"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _digits(value: float | None, pattern: str, unit: str = "") -> str:
    return "-" if value is None else format(value, pattern) + unit


def _short(epoch: float | None) -> str:
    """Two decimals at most."""
    return "-" if epoch is None else f"{epoch:.2f}".rstrip("0").rstrip(".")


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def sentence(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def log_end(run: Run) -> str:
    """The last lines of train.log as plain text; "" if there is none yet."""
    try:
        with open_regular(run.log_path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    # A carriage return redraws a line in a terminal: what it ended up as is what counts.
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in _ANSI.sub("", text).split("\n")]
    return "\n".join(lines[-LOG_LINES - 1 :]).strip("\n")
