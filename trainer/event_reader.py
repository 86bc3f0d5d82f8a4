"""Reading `events.jsonl` from a byte offset, in parts, whatever lies in it. Imports no torch.

Nearly all lines of a long run are steps. They stay together as `StepLines`, unparsed until somebody asks: a list of
runs needs only the newest one, a chart takes all as columns. So a million steps are read in about a second.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainer.events import Event
from trainer.files import open_regular

PART = 1 << 20  # bytes read at a time
MAX_LINE = 4 << 20  # bytes; our longest line, the `start` of ten thousand classes, has a quarter of that
STEPS = re.compile(rb'^(?:\{"kind":"step",[^\n]*\n)+', re.MULTILINE)  # as `EventWriter` writes them
LARGEST = 2**53  # beyond, a float and a browser no longer count


def _is_number(value: object) -> bool:
    return type(value) in (float, int) and abs(value) <= LARGEST  # type: ignore[arg-type]  # NaN fails as well


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) <= LARGEST


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_texts(value: object) -> bool:
    return type(value) is list and all(type(item) is str for item in value)


def _is_seconds(value: object) -> bool:
    return _is_number(value) and value >= 0  # type: ignore[operator]


def _is_seconds_by_rank(value: object) -> bool:
    return type(value) is list and all(type(rank) is dict and all(map(_is_seconds, rank.values())) for rank in value)


# What a reader may take for granted about a key that is there and not null; a line that breaks it is a bad line.
TYPES: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(
        ("time", "epoch", "loss", "accuracy", "lr", "images_per_second", "grad_norm", "seconds"), _is_number
    ),
    **dict.fromkeys(("v", "step", "count", "rank", "world_size", "threads"), _is_whole),
    **dict.fromkeys(("parameters", "total_steps", "steps_per_epoch", "steps"), _is_whole),
    **dict.fromkeys(("gradient_bytes", "largest_layer_bytes"), _is_whole),
    **dict.fromkeys(("kind", "text", "status", "error", "path", "run", "checksum", "largest_layer"), _is_text),
    **dict.fromkeys(("backend", "precision", "memory_format", "allocator"), _is_text),
    **dict.fromkeys(("devices", "classes"), _is_texts),
    "ranks": _is_seconds_by_rank,
    "config": lambda value: type(value) is dict,
}


# Null means something here; elsewhere a key that is null counts as one that is not there.
NULLABLE = {"loss", "accuracy", "lr", "images_per_second", "grad_norm", "error", "rank", "cause"}


class Step(msgspec.Struct, tag_field="kind", tag="step", forbid_unknown_fields=True, gc=False):
    """A `step` event as the trainer writes it."""

    time: float
    step: int
    loss: float | None
    epoch: float = 0.0
    lr: float | None = None
    accuracy: float | None = None
    images_per_second: float | None = None
    grad_norm: float | None = None
    nonfinite: bool = False


_DECODER = msgspec.json.Decoder(Step)


@dataclass(frozen=True)
class StepLines:
    """Lines that follow each other and begin as steps do."""

    position: int  # of the first, in bytes
    data: bytes

    def __len__(self) -> int:
        return self.data.count(b"\n")

    def events(self) -> Iterator[tuple[int, Event]]:
        """(byte position, event), bad lines left out."""
        return _events(self.data, self.position)

    def newest(self) -> tuple[int, Event] | None:
        end = len(self.data)
        while end:
            begin = self.data.rfind(b"\n", 0, end - 1) + 1
            event = _parse(self.data[begin:end])
            if event is not None:
                return self.position + begin, event
            end = begin
        return None

    def steps(self) -> list[Step] | None:
        """All of them at once; None if a line is not exactly as the trainer writes it."""
        try:
            steps = _DECODER.decode_lines(self.data)
        except (msgspec.DecodeError, RecursionError):
            return None
        return steps if len(steps) == len(self) else None


Block = tuple[int, Event] | StepLines  # one event with its byte position, or many steps


def events_of(blocks: list[Block]) -> Iterator[tuple[int, Event]]:
    """(byte position, event) one by one."""
    for block in blocks:
        if isinstance(block, StepLines):
            yield from block.events()
        else:
            yield block


class EventTail:
    """Reads what was appended since the last call. `generation` rises when the file was cut or replaced."""

    def __init__(self, path: Path):
        self.path = path
        self.offset = 0
        self.size = 0  # of the file, in bytes, when it was last looked at
        self.generation = 0
        self.has_more = False  # the last call stopped at the end of a part, not of the file
        self._within_long_line = False

    def read(self) -> list[Block]:
        """The next part of the new events, in their order.

        Bad lines and those beyond MAX_LINE are skipped, a torn last line is left for later.
        """
        self.has_more = False
        try:
            with open_regular(self.path) as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size < self.offset:
                    self.offset, self._within_long_line = 0, False
                    self.generation += 1
                file.seek(self.offset)
                data = file.read(PART)
                is_full = len(data) == PART
                if is_full and b"\n" not in data and not self._within_long_line:
                    data += file.readline(MAX_LINE - PART)
        except OSError:  # there is none, or the disk fails: the rest comes when it works again
            return []
        return self._take(data, is_full)

    def _take(self, data: bytes, is_full: bool) -> list[Block]:
        begin = 0
        if self._within_long_line:
            begin = data.find(b"\n") + 1 or len(data)
            self._within_long_line = not data[:begin].endswith(b"\n")
        end = max(begin, data.rfind(b"\n") + 1)
        position = self.offset + begin
        if len(data) - end >= MAX_LINE:
            self._within_long_line, self.offset = True, self.offset + len(data)
        else:
            self.offset += end
        self.has_more = is_full and self.offset > position - begin
        return _blocks(data[begin:end], position)


def _blocks(data: bytes, position: int) -> list[Block]:
    blocks: list[Block] = []
    done = 0
    for found in STEPS.finditer(data):
        blocks += _events(data[done : found.start()], position + done)
        blocks.append(StepLines(position + found.start(), found.group()))
        done = found.end()
    blocks += _events(data[done:], position + done)
    return blocks


def _events(data: bytes, position: int) -> Iterator[tuple[int, Event]]:
    for line in data.split(b"\n")[:-1]:
        event = _parse(line)
        if event is not None:
            yield position, event
        position += len(line) + 1


def _parse(line: bytes) -> Event | None:
    """The event of a line; None if it is none, whatever else it may be."""
    try:
        event = json.loads(line)
        if b"\\u" in line:  # half a pair of surrogates is no text: it cannot be sent or printed
            json.dumps(event, ensure_ascii=False).encode()
    except (ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(event, dict) or event.get("kind") is None:
        return None
    for key, value in event.items():
        check = TYPES.get(key)
        if check is not None and value is not None and not check(value):
            return None
    return {key: value for key, value in event.items() if value is not None or key in NULLABLE}


def read_events(path: Path) -> list[Event]:
    """All events of a file; [] if there is none."""
    tail, events = EventTail(path), []
    while True:
        events += [event for _, event in events_of(tail.read())]
        if not tail.has_more:
            return events
