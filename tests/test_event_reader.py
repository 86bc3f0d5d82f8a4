"""Readers get whole events, in parts and each once, whatever lies in the file."""

import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from trainer.event_reader import MAX_LINE, PART, EventTail, StepLines, events_of, read_events
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


def read(tail: EventTail) -> list[dict]:
    return [event for _, event in events_of(tail.read())]


def read_all(tail: EventTail) -> list[dict]:
    seen = read(tail)
    while tail.has_more:
        seen += read(tail)
    return seen


def test_cut_at_any_byte_only_the_torn_line_is_missing_and_comes_when_it_is_whole(path: Path, tmp_path: Path):
    write(path, "start", text="ü")
    write(path, "end", status="completed")
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for cut in range(len(whole) + 1):
        torn = tmp_path / "torn"
        torn.write_bytes(whole[:cut])
        tail = EventTail(torn)
        early = [event["kind"] for event in read(tail)]
        assert early == ["start"] * (cut >= first_line) + ["end"] * (cut == len(whole))
        torn.write_bytes(whole)
        late = [event["kind"] for event in read(tail)]
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
    write(path, "step", step=1)
    write(path, "step", step=2)
    write(path, "end")
    data = path.read_bytes()
    found = events_of(EventTail(path).read())
    assert [(json.loads(data[position:].splitlines()[0]), event) for position, event in found] == [
        (event, event) for event in read_events(path)
    ]
    assert [event["kind"] for event in read_events(path)] == ["start", "step", "step", "end"]


def test_long_lines_are_whole_and_endless_ones_are_skipped(path: Path):
    for size in (1 << 20, MAX_LINE - 100, MAX_LINE + 100, 3 * MAX_LINE, 7):
        write(path, "warning", text="x" * size)
    assert [len(event["text"]) for event in read_events(path)] == [1 << 20, MAX_LINE - 100, 7]


def test_a_tail_gives_each_event_once(path: Path):
    tail = EventTail(path)
    seen = []
    for step in range(3):
        write(path, "step", step=step)
        seen += [event["step"] for event in read(tail)]
    assert seen == [0, 1, 2]
    assert tail.read() == []


def test_parts_are_read_one_after_the_other_and_lose_nothing(path: Path):
    events = [{"kind": "step" if n % 1000 else "eval", "time": 1.0, "step": n, "loss": 0.5} for n in range(60_000)]
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events))
    tail, seen, num_parts = EventTail(path), [], 0
    while num_parts == 0 or tail.has_more:
        part = read(tail)
        assert part
        seen += part
        num_parts += 1
    assert seen == events
    assert num_parts == -(-path.stat().st_size // PART)


@pytest.mark.parametrize("size", range(PART - 40, PART + 40))
def test_a_part_that_ends_anywhere_in_a_line_loses_nothing(path: Path, size: int):
    filler = b'{"kind":"warning","text":"' + b"x" * (size - 29) + b'"}\n'
    path.write_bytes(filler + b'{"kind":"step","time":1.0,"step":1,"loss":0.5}\n{"kind":"end"}\n')
    assert kinds(path) == ["warning", "step", "end"]


def test_a_large_file_is_read_in_the_memory_of_a_few_parts(path: Path):
    line = b'{"kind":"step","time":1.7e9,"step":1,"loss":0.5,"text":"' + b"x" * 2000 + b'"}\n'
    path.write_bytes(line * 20_000)
    tail = EventTail(path)
    tracemalloc.start()
    try:
        num_steps = sum(1 for _ in events_of(tail.read()))
        while tail.has_more:
            num_steps += sum(1 for _ in events_of(tail.read()))
        assert num_steps == 20_000
        assert tracemalloc.get_traced_memory()[1] < 6 * PART
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
                seen += [event["kind"] for event in read_all(tail)]
            file.write(b'\n{"kind":"end"}\n')
        seen += [event["kind"] for event in read_all(tail)]
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


def test_a_cut_file_is_read_anew_and_says_so(path: Path):
    write(path, "start", text="a long first life")
    tail = EventTail(path)
    tail.read()
    os.truncate(path, 0)
    assert tail.read() == []
    write(path, "end")
    assert [event["kind"] for event in read(tail)] == ["end"]
    assert tail.generation == 1


def test_steps_that_follow_each_other_stay_together(path: Path):
    write(path, "start")
    for step in (1, 2, 3):
        write(path, "step", step=step, loss=0.5)
    write(path, "eval", step=3)
    write(path, "step", step=4, loss=0.5)
    kinds_found = [len(block) if isinstance(block, StepLines) else block[1]["kind"] for block in EventTail(path).read()]
    assert kinds_found == ["start", 3, "eval", 1]


def test_the_newest_of_many_steps_is_the_last_that_is_whole_and_sound(path: Path):
    write(path, "step", step=1, loss=0.5)
    write(path, "step", step=2, loss=0.5)
    with path.open("a") as file:
        file.write('{"kind":"step","step":"x"}\n{"kind":"step",\n')
    (lines,) = EventTail(path).read()
    assert isinstance(lines, StepLines)
    position, event = lines.newest() or (0, {})
    assert event["step"] == 2
    assert path.read_bytes()[position:].startswith(b'{"kind":"step","time":')
    assert [event["step"] for _, event in lines.events()] == [1, 2]
    assert StepLines(0, b'{"kind":"step",\n').newest() is None
    assert StepLines(0, b"").newest() is None
