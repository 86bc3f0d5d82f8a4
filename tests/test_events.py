"""events.jsonl: whatever happens to the writer or the disk, readers get whole events and the training goes on."""

import json
import math
import os
import sys
from pathlib import Path

import pytest

from tests.conftest import small_files
from trainer.event_reader import read_events
from trainer.events import EventWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def write(path: Path, kind: str, **fields) -> None:
    writer = EventWriter(path)
    writer.write(kind, **fields)
    writer.close()


def kinds(path: Path) -> list[str]:
    return [event["kind"] for event in read_events(path)]


def refuse_constant(name: str):
    raise AssertionError(f"{name} is not JSON")


def test_what_was_written_is_read(path: Path):
    write(path, "step", step=1, loss=0.5, text="a\nb ü")
    (event,) = read_events(path)
    assert event.pop("time") > 1.7e9
    assert event == {"kind": "step", "step": 1, "loss": 0.5, "text": "a\nb ü"}


def test_no_file_has_no_events(path: Path):
    assert read_events(path) == []


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_has_no_events_and_blocks_nobody(path: Path, make, capfd: pytest.CaptureFixture[str]):
    make(path)
    assert read_events(path) == []
    if not path.is_symlink():
        assert not EventWriter(path).write("start")
        assert capfd.readouterr().err.count("\n") == 1


def test_a_name_that_is_no_text_is_written_and_read(path: Path):
    write(path, "warning", text=os.fsdecode(b"caf\xe9.png"))
    assert [event["text"] for event in read_events(path)] == ["caf?.png"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_becomes_null_and_is_owned_up_to(path: Path, value: float):
    write(path, "step", loss=value, lr=0.1)
    event = json.loads(path.read_text(), parse_constant=refuse_constant)
    assert (event["loss"], event["lr"], event["nonfinite"]) == (None, 0.1, True)


def test_finite_events_do_not_mention_it(path: Path):
    write(path, "step", loss=0.0)
    assert "nonfinite" not in read_events(path)[0]


def test_the_writer_after_a_torn_line_starts_a_new_one(path: Path):
    write(path, "start")
    with path.open("ab") as file:
        file.write(b'{"kind":"step","los')
    write(path, "end")
    assert kinds(path) == ["start", "end"]


def test_a_writer_killed_at_any_time_costs_at_most_its_last_event(path: Path, start_process):
    code = (
        "import sys; from pathlib import Path; from trainer.events import EventWriter\n"
        "writer = EventWriter(Path(sys.argv[1]))\n"
        "for step in range(10**9):\n    writer.write('step', step=step)\n    print(step, flush=True)"
    )
    with start_process(sys.executable, "-c", code, str(path), stdout=-1) as process:
        for _ in range(50):
            said = int(process.stdout.readline())
        process.kill()
        said = max([said, *map(int, process.stdout.read().splitlines()[:-1])])
    write(path, "end")
    steps = [event["step"] for event in read_events(path)[:-1]]
    assert steps == list(range(len(steps)))
    assert len(steps) >= said
    assert kinds(path)[-1] == "end"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_once_and_never_raises(capfd: pytest.CaptureFixture[str]):
    writer = EventWriter(Path("/dev/full"))
    for step in range(5):
        writer.write("step", step=step)
    writer.close()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "No space left" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_log_too_ends_nothing(start_process):
    code = (
        "from pathlib import Path; from trainer.events import EventWriter; from trainer.log import say\n"
        "EventWriter(Path('/dev/full')).write('start'); say('on we go')"
    )
    with open("/dev/full", "w") as full:
        assert start_process(sys.executable, "-c", code, stdout=full, stderr=full).wait(30) == 0


def test_a_folder_that_is_gone_is_told_once_and_never_raises(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    writer = EventWriter(tmp_path / "gone" / "events.jsonl")
    for step in range(5):
        writer.write("step", step=step)
    assert capfd.readouterr().err.count("\n") == 1


def test_when_the_disk_has_room_again_events_are_whole_again(path: Path, capfd: pytest.CaptureFixture[str]):
    writer = EventWriter(path)
    writer.write("start", text="x" * 100_000)  # larger than what catches stderr, to which the limit applies too
    with small_files(path.stat().st_size + 20):
        for step in range(5):
            writer.write("step", step=step)
    writer.write("end")
    writer.close()
    assert kinds(path) == ["start", "end"]
    assert capfd.readouterr().err.count("\n") == 1


def test_a_file_that_was_replaced_or_removed_while_it_was_written_gets_what_follows(path: Path):
    writer = EventWriter(path)
    writer.write("a")
    path.with_name("new").write_text('{"kind": "edited"}\n')
    os.replace(path.with_name("new"), path)
    writer.write("b")
    assert kinds(path) == ["edited", "b"]
    path.unlink()
    assert writer.write("c")
    assert kinds(path) == ["c"]
    writer.close()


def test_a_file_whose_folder_was_moved_is_written_there(tmp_path: Path):
    (tmp_path / "old").mkdir()
    writer = EventWriter(tmp_path / "old" / "events.jsonl")
    writer.write("a")
    (tmp_path / "old").rename(tmp_path / "new")
    assert writer.write("b")
    assert kinds(tmp_path / "new" / "events.jsonl") == ["a", "b"]
    assert not (tmp_path / "old").exists()
    writer.close()
