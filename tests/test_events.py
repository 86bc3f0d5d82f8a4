"""events.jsonl: whatever happens to the writer or the disk, readers get whole events and the training goes on."""

import json
import math
import os
import random
import sys
import tracemalloc
from pathlib import Path

import pytest

from tests.conftest import small_files
from trainer.events import MAX_LINE, EventTail, EventWriter, read_events


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


def test_cut_at_any_byte_only_the_torn_line_is_missing_and_comes_when_it_is_whole(path: Path, tmp_path: Path):
    write(path, "start", text="ü")
    write(path, "end", status="completed")
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        torn = tmp_path / "torn"
        torn.write_bytes(whole[:cut])
        tail = EventTail(torn)
        early = [event["kind"] for _, event in tail.read()]
        assert early == ["start"] * (cut >= first_line) + ["end"] * (cut == len(whole))
        torn.write_bytes(whole)
        late = [event["kind"] for _, event in tail.read()]
        assert early + late == ["start", "end"]
        assert tail.generation == 0


@pytest.mark.parametrize(
    "line", [b"", b"{", b"null", b"3", b"[]", b'{"time": 1}', b'{"kind": 3}', b"\xff\xfe\x00", b"[" * 100_000, b"nan"]
)
def test_a_bad_line_is_skipped(path: Path, line: bytes):
    write(path, "start")
    with path.open("ab") as file:
        file.write(line + b"\n")
    write(path, "end")
    assert kinds(path) == ["start", "end"]


def test_positions_are_where_the_lines_begin(path: Path):
    write(path, "start")
    write(path, "end")
    data = path.read_bytes()
    assert [json.loads(data[position:].splitlines()[0])["kind"] for position, _ in EventTail(path).read()] == [
        "start",
        "end",
    ]


def test_long_lines_are_whole_and_endless_ones_are_skipped(path: Path):
    for size in (1 << 20, MAX_LINE - 100, MAX_LINE + 100, 3 * MAX_LINE, 7):
        write(path, "warning", text="x" * size)
    assert [len(event["text"]) for event in read_events(path)] == [1 << 20, MAX_LINE - 100, 7]


def test_a_tail_gives_each_event_once(path: Path):
    tail = EventTail(path)
    seen = []
    for step in range(3):
        write(path, "step", step=step)
        seen += [event["step"] for _, event in tail.read()]
    assert seen == [0, 1, 2]
    assert tail.read() == []


def test_parts_are_read_one_after_the_other_and_lose_nothing(path: Path):
    writer = EventWriter(path)
    for step in range(10):
        writer.write("step", step=step)
    writer.close()
    tail = EventTail(path)
    parts = [[event["step"] for _, event in tail.read(limit=4)] for _ in range(4)]
    assert parts == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], []]


def test_what_is_not_taken_from_a_stream_comes_next_time(path: Path):
    for step in range(3):
        write(path, "step", step=step)
    tail = EventTail(path)
    assert next(tail.stream())[1]["step"] == 0
    assert [event["step"] for _, event in tail.stream()] == [1, 2]


def test_a_large_file_is_folded_in_the_memory_of_a_line(path: Path):
    line = b'{"kind":"step","time":1.7e9,"step":1,"loss":0.5,"text":"' + b"x" * 2000 + b'"}\n'
    path.write_bytes(line * 10_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in EventTail(path).stream()) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_endless_line_is_skipped_in_bounded_memory_also_while_it_grows(path: Path):
    write(path, "start")
    tail = EventTail(path)
    tracemalloc.start()
    try:
        seen = []
        with path.open("ab") as file:
            for _ in range(25):  # 100 MB
                file.write(b"[" * (4 << 20))
                file.flush()
                seen += [event["kind"] for _, event in tail.read()]
            file.write(b'\n{"kind":"end"}\n')
        seen += [event["kind"] for _, event in tail.read()]
        assert tracemalloc.get_traced_memory()[1] < 5 * MAX_LINE
    finally:
        tracemalloc.stop()
    assert seen == ["start", "end"]


@pytest.mark.parametrize(
    "fields",
    [
        '"loss":1e999',
        '"loss":NaN',
        '"step":"7"',
        '"step":1.5',
        '"step":true',
        f'"step":1{"0" * 400}',
        f'"step":1{"0" * 5000}',
        '"time":[]',
        '"text":7',
        '"text":"\\ud800"',
        '"devices":"cpu"',
        '"devices":[[1]]',
        '"classes":{}',
        '"config":[]',
        '"world_size":"two"',
        f'"x":{"[" * 100_000}',
    ],
)
def test_a_value_that_readers_would_stumble_over_makes_a_bad_line(path: Path, fields: str):
    path.write_text(f'{{"kind":"step",{fields}}}\n{{"kind":"end"}}\n')
    assert kinds(path) == ["end"]


def test_kinds_and_keys_of_other_versions_pass(path: Path):
    path.write_text(
        '{"kind":"anatomy","v":9,"parts":[1,{"a":null}]}\n{"kind":"step","loss":null,"new":{"x":"\\u0000"}}\n'
    )
    assert kinds(path) == ["anatomy", "step"]


def test_noise_is_no_event_and_no_error(path: Path):
    noise = random.Random(0).randbytes(1_000_000) + bytes(1_000_000)
    path.write_bytes(noise + b'\n{"kind":"end"}\n' + noise)
    assert kinds(path) == ["end"]


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


def test_a_cut_file_is_read_anew_and_says_so(path: Path):
    write(path, "start", text="a long first life")
    tail = EventTail(path)
    tail.read()
    os.truncate(path, 0)
    assert tail.read() == []
    write(path, "end")
    assert [event["kind"] for _, event in tail.read()] == ["end"]
    assert tail.generation == 1


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
