"""A run on a full disk still says how it ended."""

from pathlib import Path

import pytest

from tests.disks import fill, needs_small_disks, remount_read_only, small_disk
from trainer import reserve
from trainer.event_reader import read_events
from trainer.events import EventWriter

END = {"status": "completed", "error": "x" * 3000, "rank": None, "step": 7}


def ends(folder: Path) -> list[int]:
    return [event["step"] for event in read_events(folder / "events.jsonl") if event["kind"] == "end"]


def test_room_is_really_taken_and_given_back_at_the_end(tmp_path: Path):
    assert reserve.take(tmp_path)
    assert reserve.reserve_path(tmp_path).stat().st_blocks * 512 >= reserve.SIZE
    assert reserve.write_end(tmp_path, EventWriter(tmp_path / "events.jsonl"), **END)
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]
    assert ends(tmp_path) == [7]


def test_what_a_killed_run_kept_is_taken_over_and_given_back(tmp_path: Path):
    assert reserve.take(tmp_path)
    assert reserve.take(tmp_path)
    assert reserve.write_end(tmp_path, EventWriter(tmp_path / "events.jsonl"), **END)
    assert not reserve.reserve_path(tmp_path).exists()


@needs_small_disks
@pytest.mark.parametrize("kept", [True, False])
def test_on_a_full_disk_the_end_is_written_into_the_room_that_was_kept(tmp_path: Path, kept: bool, capfd):
    with small_disk(tmp_path / "disk", "2m") as disk:
        events = EventWriter(disk / "events.jsonl")
        events.write("start", step=0)
        assert not kept or reserve.take(disk)
        fill(disk)
        lost = [events.write("step", step=step, loss=0.5) for step in range(1000)]
        assert not all(lost)
        assert reserve.write_end(disk, events, **END) is kept
        assert ends(disk) == [7] * kept
        assert not reserve.reserve_path(disk).exists()
    assert capfd.readouterr().err.count("\n") == 1


@needs_small_disks
def test_a_disk_without_room_or_without_writes_is_no_failure(tmp_path: Path, capfd):
    with small_disk(tmp_path / "disk", "256k") as disk:
        fill(disk)
        assert not reserve.take(disk)
        assert not reserve.reserve_path(disk).exists()
        remount_read_only(disk)
        assert not reserve.take(disk)
        assert not reserve.write_end(disk, EventWriter(disk / "events.jsonl"), **END)
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_where_there_is_no_room_at_all_it_gives_up_within_a_second(tmp_path: Path, capfd):
    assert reserve.take(tmp_path)
    assert not reserve.write_end(tmp_path, EventWriter(Path("/dev/full")), **END)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().err.count("\n") == 1
