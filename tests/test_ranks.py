"""What a rank says about itself is always whole, and saying it never ends the rank."""

import json
import os
from pathlib import Path

import pytest

from tests.conftest import await_true
from trainer.config import TrainConfig
from trainer.processes import identity
from trainer.ranks import BEAT, RankRecord
from trainer.runs import Run


@pytest.fixture
def run(runs_dir: Path) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes"))


def test_a_rank_is_known_from_its_first_moment(run: Run):
    RankRecord(run, 3)
    (record,) = run.rank_records()
    assert (record["rank"], record["step"]) == (3, 0)
    assert run.rank_identities() == [identity(os.getpid())]


def test_records_are_in_the_order_of_the_ranks(run: Run):
    for rank in (10, 2, 0):
        RankRecord(run, rank)
    assert [record["rank"] for record in run.rank_records()] == [0, 2, 10]


def test_the_heartbeat_is_written_now_and_then_and_the_last_word_at_once(run: Run):
    record = RankRecord(run, 0)
    before = record.path.stat().st_ino
    record.beat(1)
    assert record.path.stat().st_ino == before

    def has_beaten() -> bool:
        record.beat(2)
        return run.rank_records()[0]["step"] == 2

    await_true(has_beaten, BEAT + 20, "a heartbeat")
    record.done({"status": "completed", "step": 2})
    assert run.rank_records()[0]["done"] == {"status": "completed", "step": 2}


def test_an_error_of_any_length_is_recorded_in_short(run: Run):
    RankRecord(run, 0).failed(ValueError("x" * 10**6))
    (record,) = run.rank_records()
    assert record["error"]["type"] == "ValueError"
    assert not record["error"]["peer"]
    assert len(json.dumps(record)) < 20_000


def test_a_record_that_cannot_be_written_ends_nothing(run: Run):
    record = RankRecord(run, 0)
    record.path.unlink()
    run.ranks_path.rmdir()
    record.done({})
    record.failed(ValueError("lost"))
