"""Why a run failed: the rank that caused it, not the neighbours that noticed. Imports no torch."""

import signal
from collections.abc import Sequence
from typing import Any

from trainer.causes import with_advice
from trainer.log import printable
from trainer.pulse import Silence


class Blame(RuntimeError):
    """The reason of a failed run in one sentence, with its kind and the rank and the step where it happened."""

    def __init__(self, text: str, rank: int, step: int, cause: str):
        super().__init__(printable(text))
        self.rank = rank
        self.step = step
        self.cause = cause


def blame_silence(silence: Silence) -> Blame:
    return Blame(with_advice(str(silence), "hang"), silence.rank, silence.step, "hang")


def find_blame(records: Sequence[dict[str, Any]], error: Exception | None, gone: Sequence[int] = ()) -> Blame:
    """From what the ranks recorded (trainer.ranks), how their processes ended, and which are `gone` before their time.

    In this order: the earliest recorded error that is not about a lost peer; a rank that died of a signal or exit
    code; a rank that left without finishing; with nothing but complaints about peers, the rank silent for longest.
    """
    own = [r for r in records if "error" in r and not r["error"]["peer"]]
    if own:
        culprit = min(own, key=lambda r: r["error"]["time"])
        failure = culprit["error"]
        cause = failure.get("cause", "exception")
        return _blame(culprit, f": {failure['type']}: {_first_line(failure['message'])}", cause)
    signal_name = getattr(error, "signal_name", None)
    exit_code = getattr(error, "exit_code", None)
    died = getattr(error, "error_index", None)
    record = next((r for r in records if r["rank"] == died), {"rank": died or 0, "step": 0})
    # One that had noticed the loss of a peer before it was terminated was on its way out anyway.
    if signal_name and (signal_name != signal.SIGTERM.name or "error" not in record):
        return _blame(record, f" was killed by {signal_name}", "signal", _SIGNAL_HINTS.get(signal_name, ""))
    if exit_code and not signal_name:
        return _blame(record, f" ended with exit code {exit_code}", "exit")
    if gone:  # as rank 1, which just left, where rank 0 has been quiet for longer
        record = next((r for r in records if r["rank"] in gone), {"rank": gone[0], "step": 0})
        return _blame(record, " ended without finishing its work", "exit")
    left = [r for r in records if "error" not in r and "done" not in r]
    if left:
        silent = min(left, key=lambda r: r["heartbeat"])
        if any("error" in r for r in records):
            return _blame(silent, " stopped answering the other ranks", "exit")
        return _blame(silent, " ended without finishing its work", "exit")
    if records:
        silent = min(records, key=lambda r: r["heartbeat"])
        return _blame(silent, " lost the connection to the other ranks", "port")
    return Blame(f"the ranks could not be started: {_last_line(str(error))}", 0, 0, "exception")


_SIGNAL_HINTS = {
    "SIGKILL": ", often a sign that the memory ran out: try a smaller batch",
    "SIGTERM": ", which somebody sent to this process alone",
    "SIGBUS": ", often a sign that shared memory or the disk is full",
}


def _blame(record: dict[str, Any], what: str, cause: str, hint: str = "") -> Blame:
    step = int(record.get("step", 0))
    where = f" at step {step}" if step else " before its first step"
    text = f"Rank {record['rank']}{what}{where}{hint}"
    return Blame(with_advice(text, cause), int(record["rank"]), step, cause)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:500] if text.strip() else "no message"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:500] if text.strip() else "no message"
