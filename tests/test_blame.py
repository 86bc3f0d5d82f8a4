"""The rank that caused a failure is named, not the neighbours that noticed it."""

import json
import time
from pathlib import Path

import pytest
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from trainer.blame import find_blame
from trainer.config import TrainConfig
from trainer.ranks import PEER_SIGNS, RankRecord, is_peer_error
from trainer.runs import Run

PEER = "[gloo] Connection closed by peer [127.0.0.1]:29500"


@pytest.fixture
def run(runs_dir: Path) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes", parallel="ddp"))


def rank(run: Run, number: int, step: int = 0, error: Exception | None = None, done: bool = False, age: float = 0):
    """Write the record of a rank whose last word was `age` seconds ago."""
    record = RankRecord(run, number)
    record.values["step"] = step
    record.values["heartbeat"] = time.time() - age
    if done:
        record.values["done"] = {"status": "completed", "step": step}
    if error:
        record.failed(error)
        record.values["heartbeat"] = time.time() - age
        record.values["error"]["time"] = time.time() - age
    record.path.write_text(json.dumps(record.values))


def exited(number: int, code: int, signal_name: str | None = None) -> ProcessExitedException:
    return ProcessExitedException("it ended", number, 4711, code, signal_name)


def raised(number: int) -> ProcessRaisedException:
    return ProcessRaisedException("a traceback", number, 4711)


def test_the_earliest_error_that_is_not_about_a_peer_is_the_cause(run: Run):
    rank(run, 0, 41, RuntimeError(PEER), age=5)
    rank(run, 1, 41, ZeroDivisionError("too late"), age=1)
    rank(run, 2, 40, ValueError("picture 7 is broken\nin detail"), age=3)
    blame = find_blame(run.rank_records(), raised(0))
    assert str(blame) == "Rank 2: ValueError: picture 7 is broken at step 40: the log has the whole trace"
    assert (blame.rank, blame.step) == (2, 40)


def test_an_error_without_words_still_has_a_sentence(run: Run):
    rank(run, 0, error=AssertionError())
    blame = find_blame(run.rank_records(), raised(0))
    assert str(blame).startswith("Rank 0: AssertionError: no message before its first step")


def test_a_killed_rank_is_named_with_the_usual_reason(run: Run):
    rank(run, 0, 12, RuntimeError(PEER))
    rank(run, 1, 12)
    blame = find_blame(run.rank_records(), exited(1, -9, "SIGKILL"))
    assert str(blame).startswith("Rank 1 was killed by SIGKILL at step 12, often a sign that the memory ran out")
    assert (blame.rank, blame.step) == (1, 12)


def test_another_signal_is_named_without_a_guess(run: Run):
    rank(run, 1, 3)
    assert str(find_blame(run.rank_records(), exited(1, -11, "SIGSEGV"))) == "Rank 1 was killed by SIGSEGV at step 3"


def test_a_rank_that_somebody_terminated_is_named(run: Run):
    rank(run, 0, 3, RuntimeError(PEER))
    rank(run, 1, 3)
    assert "Rank 1 was killed by SIGTERM at step 3" in str(find_blame(run.rank_records(), exited(1, -15, "SIGTERM")))


def test_an_exit_code_is_named(run: Run):
    rank(run, 0, 3, RuntimeError(PEER))
    rank(run, 1, 3)
    assert (
        str(find_blame(run.rank_records(), exited(1, 7)))
        == "Rank 1 ended with exit code 7 at step 3: the log may say why"
    )


def test_a_rank_that_died_before_it_could_write_is_named(run: Run):
    rank(run, 0)
    blame = find_blame(run.rank_records(), exited(1, -9, "SIGKILL"))
    assert str(blame).startswith("Rank 1 was killed by SIGKILL before its first step")
    assert (blame.rank, blame.step) == (1, 0)


def test_a_rank_that_left_with_exit_code_0_is_the_cause_of_its_peers_complaints(run: Run):
    rank(run, 0, 9, RuntimeError(PEER))
    rank(run, 1, 8)
    assert (
        str(find_blame(run.rank_records(), raised(0)))
        == "Rank 1 stopped answering the other ranks at step 8: the log may say why"
    )


def test_a_rank_that_is_gone_is_named_and_not_one_that_was_quiet_for_longer(run: Run):
    rank(run, 0, 3, age=2)
    rank(run, 1, 3, age=1)
    blame = find_blame(run.rank_records(), None, gone=[1])
    assert (blame.rank, blame.step, blame.cause) == (1, 3, "exit")
    assert str(blame).startswith("Rank 1 ended without finishing its work at step 3")
    assert find_blame([], None, gone=[1]).rank == 1


def test_of_two_that_are_silent_the_one_silent_for_longer_is_named(run: Run):
    rank(run, 0, 9, RuntimeError("Timed out waiting 6000ms for recv"))
    rank(run, 1, 8, age=2)
    rank(run, 2, 7, age=9)
    assert find_blame(run.rank_records(), raised(0)).rank == 2


def test_a_rank_ended_by_its_launcher_is_not_taken_for_the_cause(run: Run):
    rank(run, 0, 5, RuntimeError(PEER))
    rank(run, 1, 5)
    assert (
        str(find_blame(run.rank_records(), exited(0, -15, "SIGTERM")))
        == "Rank 1 stopped answering the other ranks at step 5: the log may say why"
    )


def test_ranks_that_all_leave_without_a_word_did_not_finish(run: Run):
    rank(run, 0, 5, age=1)
    rank(run, 1, 5, age=4)
    assert (
        str(find_blame(run.rank_records(), None))
        == "Rank 1 ended without finishing its work at step 5: the log may say why"
    )


def test_the_one_that_did_not_finish_is_named_beside_those_that_did(run: Run):
    rank(run, 0, 5, done=True, age=9)
    rank(run, 1, 4)
    assert find_blame(run.rank_records(), None).rank == 1


def test_with_nothing_but_complaints_the_longest_silent_is_named(run: Run):
    rank(run, 0, 5, RuntimeError(PEER), age=1)
    rank(run, 1, 4, RuntimeError(PEER), age=6)
    blame = find_blame(run.rank_records(), raised(0))
    assert str(blame).startswith("Rank 1 lost the connection to the other ranks at step 4")


def test_ranks_that_never_were_are_told_with_the_reason(run: Run):
    assert str(find_blame(run.rank_records(), OSError("no memory"))) == "the ranks could not be started: no memory"


def test_damaged_records_spoil_no_verdict(run: Run):
    rank(run, 1, 5, ValueError("mine"))
    (run.ranks_path / "0.json").write_text("{")
    (run.ranks_path / "2.json").write_text("[]")
    assert find_blame(run.rank_records(), raised(1)).rank == 1


@pytest.mark.parametrize("sign", PEER_SIGNS)
def test_a_lost_peer_is_known_by_its_words(sign: str):
    assert is_peer_error(RuntimeError(f"[Rank 0] {sign} at 127.0.0.1"))


@pytest.mark.parametrize("error", [ValueError(PEER), OSError("Broken pipe"), RuntimeError("CUDA out of memory")])
def test_other_errors_are_a_ranks_own(error: Exception):
    assert not is_peer_error(error)
