"""Checkpoints are whole or absent, and what is damaged or hostile is refused in one sentence without running it."""

import os
import pickle
import random
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT, small_files
from tests.disks import fill, needs_small_disks, remount_read_only, small_disk
from trainer import checkpoint
from trainer.checkpoint import CheckpointError, MissingError, hash_path


def state(step: int = 1, size: int = 10_000) -> dict[str, Any]:
    weights = {"weight": torch.full((size,), float(step))}
    rest = {"optimizer": {}, "schedule": {}, "epoch": 1, "step": step, "best": {}}
    return {"model": weights, **rest, "config": {"lr": 0.1}, "classes": ["a", "ü"], "normalise": {"mean": [0.5]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "last.pt"


def sign(path: Path) -> None:
    """Note the hash of what lies there, as one who may write to the folder could."""
    checkpoint._write_hashes(path, [checkpoint._sha256(path)])


def files(path: Path) -> list[str]:
    return sorted(os.listdir(path.parent))


def test_what_was_saved_is_loaded(path: Path):
    checkpoint.save(path, state(3))
    loaded = checkpoint.load(path)
    assert torch.equal(loaded.pop("model")["weight"], torch.full((10_000,), 3.0))
    expected = state(3)
    del expected["model"]
    assert loaded == expected
    assert files(path) == ["last.pt", "last.pt.sha256"]


def test_the_hash_is_one_that_sha256sum_checks(path: Path, start_process):
    if not shutil.which("sha256sum"):
        pytest.skip("sha256sum is not installed")
    checkpoint.save(path, state())
    assert start_process("sha256sum", "--check", "--strict", "last.pt.sha256", cwd=path.parent).wait(30) == 0


def test_a_state_with_a_part_missing_is_our_own_fault(path: Path):
    with pytest.raises(AssertionError):
        checkpoint.save(path, {"model": {}})


def test_a_writer_killed_at_any_moment_leaves_the_last_or_the_one_being_written(path: Path, start_process):
    program = ROOT / "tests" / "programs" / "killed_writer.py"
    process = start_process(sys.executable, program, path.parent, stdout=-1)
    out, _ = process.communicate(timeout=150)
    assert process.returncode == 0
    rounds = [tuple(map(int, line.split())) for line in out.splitlines()]
    assert len(rounds) == 25
    assert all(surely <= loaded <= surely + 1 for surely, loaded in rounds)
    assert rounds[-1][0] > 0


@pytest.mark.parametrize("size", [1, 1000, 20_000])
def test_a_full_disk_leaves_the_previous_one_and_no_torso(path: Path, size: int):
    checkpoint.save(path, state(1))
    before = path.read_bytes()
    with small_files(size), pytest.raises(OSError, match="File too large"):
        checkpoint.save(path, state(2))
    assert path.read_bytes() == before
    assert files(path) == ["last.pt", "last.pt.sha256"]
    assert checkpoint.load(path)["step"] == 1


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        checkpoint.save(tmp_path / "gone" / "last.pt", state())


def crash_states(path: Path) -> dict[str, tuple[int, list[int]]]:
    """Where a crash may leave a save of step 2 over step 1: the step of the file, the steps of the hashes."""
    return {
        "before": (1, [1]),
        "hashes announced": (1, [2, 1]),
        "file in place": (2, [2, 1]),
        "done": (2, [2]),
        "announced twice": (1, [3, 2, 1]),
        "announced twice, then in place": (3, [3, 2, 1]),
    }


@pytest.mark.parametrize("where", crash_states(Path()))
def test_a_crash_between_two_renames_still_loads_and_still_saves(path: Path, where: str):
    file_step, hash_steps = crash_states(path)[where]
    bytes_of, hash_of = {}, {}
    for step in (1, 2, 3):
        checkpoint.save(path, state(step))
        bytes_of[step], hash_of[step] = path.read_bytes(), checkpoint._sha256(path)
    path.write_bytes(bytes_of[file_step])
    checkpoint._write_hashes(path, [hash_of[step] for step in hash_steps])
    assert checkpoint.load(path)["step"] == file_step
    checkpoint._write_hashes(path, [hash_of[3], *checkpoint._known_hashes(path)])  # and a crash at the next save
    assert checkpoint.load(path)["step"] == file_step
    checkpoint.save(path, state(4))
    assert checkpoint.load(path)["step"] == 4


def test_a_save_that_dies_at_each_of_its_replacements_leaves_a_loadable_file(path: Path, monkeypatch):
    class Crash(BaseException):
        pass

    checkpoint.save(path, state(1))
    for crash_at in range(3):
        calls = []

        def replace(source, target, crash_at=crash_at, calls=calls, real=os.rename):
            calls.append(target)
            if len(calls) > crash_at:
                raise Crash
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(Crash):
                checkpoint.save(path, state(2))
        assert checkpoint.load(path)["step"] in (1, 2)
        assert files(path) == ["last.pt", "last.pt.sha256"]


def test_a_flipped_bit_anywhere_is_found(path: Path):
    checkpoint.save(path, state(size=100))
    data = bytearray(path.read_bytes())
    random.seed(0)
    for place in [0, len(data) - 1, *random.choices(range(len(data)), k=98)]:
        data[place] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(path)
        path.write_bytes(data)
        checkpoint.save(path, state(size=100))
        data = bytearray(path.read_bytes())


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_cut_file_is_found(path: Path, keep: int):
    checkpoint.save(path, state())
    os.truncate(path, keep if keep >= 0 else path.stat().st_size + keep)
    with pytest.raises(CheckpointError, match=r"last\.pt is damaged"):
        checkpoint.load(path)


class Payload:
    def __reduce__(self):
        return os.mkdir, ("payload-ran",)


WRONG = {
    "empty": b"",
    "text": b"epoch,loss\n1,0.5\n",
    "a pickle that runs code": pickle.dumps(Payload()),
    "half a pickle": pickle.dumps(state(size=10))[:50],
    "zip": b"PK\x05\x06" + bytes(18),
    "noise": random.Random(0).randbytes(5000),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_file_of_another_kind_is_refused_even_with_its_hash(path: Path, kind: str):
    path.write_bytes(WRONG[kind])
    sign(path)
    with pytest.raises(CheckpointError, match=r"last\.pt is .*not a checkpoint of this program"):
        checkpoint.load(path)
    assert not Path("payload-ran").exists()


@pytest.mark.parametrize(
    "content",
    [Payload(), {**state(), "best": Payload()}, torch.nn.Linear(1, 1), [1], {"model": {}}, {}, torch.zeros(1)],
    ids=lambda value: type(value).__name__,
)
def test_a_torch_file_of_something_else_is_refused_and_runs_nothing(path: Path, content: Any):
    torch.save(content, path)
    sign(path)
    with pytest.raises(CheckpointError, match="not a checkpoint of this program"):
        checkpoint.load(path)
    assert not Path("payload-ran").exists()


def test_a_payload_would_have_run_without_the_guard(path: Path):
    torch.save(Payload(), path)
    torch.load(path, weights_only=False)
    assert Path("payload-ran").exists()


def test_a_directory_and_nothing_at_all_are_no_checkpoints(path: Path):
    with pytest.raises(MissingError, match="there is no checkpoint"):
        checkpoint.load(path)
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"last\.pt cannot be read: it is not a regular file"):
        checkpoint.load(path)


@pytest.mark.parametrize("hashes", [None, b"", b"\n\n", b"\xff\xfe\x00"])
def test_a_checkpoint_without_its_hash_is_not_trusted(path: Path, hashes: bytes | None):
    checkpoint.save(path, state())
    hash_path(path).unlink()
    if hashes is not None:
        hash_path(path).write_bytes(hashes)
    with pytest.raises(CheckpointError, match="no SHA-256"):
        checkpoint.load(path)


def test_the_hash_of_another_file_is_no_hash(path: Path):
    checkpoint.save(path, state())
    hash_path(path).write_text("0" * 64 + "  last.pt\n")
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)


def test_a_promoted_checkpoint_stays_as_it_was(path: Path):
    best = path.with_name("best.pt")
    checkpoint.save(path, state(1))
    checkpoint.promote(path, best)
    checkpoint.save(path, state(2))
    assert (checkpoint.load(best)["step"], checkpoint.load(path)["step"]) == (1, 2)
    hash_path(path).unlink()
    path.unlink()
    assert checkpoint.load(best)["step"] == 1


def test_what_a_save_replaces_is_kept_as_the_previous_one(path: Path):
    previous = path.with_name("previous.pt")
    for step in (1, 2, 3):
        checkpoint.save(path, state(step), previous)
        assert checkpoint.load(path)["step"] == step
        assert step == 1 or checkpoint.load(previous)["step"] == step - 1
    assert files(path) == ["last.pt", "last.pt.sha256", "previous.pt", "previous.pt.sha256"]


def test_a_damaged_one_never_takes_the_place_of_the_previous_one(path: Path):
    previous = path.with_name("previous.pt")
    for step in (1, 2):
        checkpoint.save(path, state(step), previous)
    os.truncate(path, 1000)
    checkpoint.save(path, state(3), previous)
    assert (checkpoint.load(path)["step"], checkpoint.load(previous)["step"]) == (3, 1)


def test_a_previous_one_that_cannot_be_kept_costs_no_save(path: Path):
    previous = path.with_name("previous.pt")
    previous.mkdir()
    for step in (1, 2):
        checkpoint.save(path, state(step), previous)
    assert checkpoint.load(path)["step"] == 2
    assert not list(path.parent.glob(".*"))


@pytest.mark.parametrize("crash_at", range(9))
def test_a_save_that_dies_between_any_two_names_leaves_the_last_or_the_one_before(path: Path, monkeypatch, crash_at):
    class Crash(BaseException):
        pass

    previous, calls = path.with_name("previous.pt"), []
    for step in (1, 2):
        checkpoint.save(path, state(step), previous)

    def counted(real):
        def call(*arguments):
            calls.append(arguments)
            if len(calls) > crash_at:
                raise Crash
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "link"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with suppress(Crash):
            checkpoint.save(path, state(3), previous)
    last, before = checkpoint.load(path)["step"], checkpoint.load(previous)["step"]
    assert (last, before) in ((2, 1), (3, 1), (3, 2))
    checkpoint.save(path, state(4), previous)
    assert (checkpoint.load(path)["step"], checkpoint.load(previous)["step"]) == (4, last)


def test_a_power_cut_finds_nothing_under_a_name_that_was_not_flushed_and_whose_hash_is_not_known(
    path: Path, monkeypatch
):
    """The order of the calls: every file is flushed before it is named, and a hash is durable before its file is."""
    calls: list[tuple[str, str]] = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        calls.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        sync(descriptor)

    def put(source: Path, target: Path) -> None:
        calls.append(("name", target.name))
        replace(source, target)

    checkpoint.save(path, state(1))
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", put)
    checkpoint.save(path, state(2), path.with_name("previous.pt"))
    folder, pid = ("sync", path.parent.name), os.getpid()

    def hashed(name: str) -> list[tuple[str, str]]:
        return [("sync", f".{name}.sha256.{pid}"), ("name", f"{name}.sha256"), folder]

    def installed(name: str) -> list[tuple[str, str]]:
        return [*hashed(name), ("name", name), folder, *hashed(name)]

    assert calls == [("sync", f".last.pt.{pid}"), *installed("last.pt"), *installed("previous.pt")]


@needs_small_disks
def test_a_disk_that_is_full_or_takes_no_writes_leaves_what_it_has(tmp_path: Path):
    with small_disk(tmp_path / "disk", "2m") as disk:
        path, previous = disk / "last.pt", disk / "previous.pt"
        for step in (1, 2):
            checkpoint.save(path, state(step), previous)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(path, state(3, size=1_000_000), previous)
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(path, state(3), previous)
        remount_read_only(disk)
        with pytest.raises(OSError, match="Read-only"):
            checkpoint.save(path, state(3), previous)
        assert (checkpoint.load(path)["step"], checkpoint.load(previous)["step"]) == (2, 1)
        assert not list(disk.glob(".*"))


def test_a_hundred_damaged_checkpoints_are_refused_in_one_sentence_each(path: Path, start_process):
    program = ROOT / "tests" / "programs" / "damaged_checkpoints.py"
    out, _ = start_process(sys.executable, program, path.parent, stdout=-1, stderr=-3).communicate(timeout=280)
    assert out.splitlines()[-1] == "100 of 100 refused", out


def test_a_better_one_replaces_the_promoted(path: Path):
    best = path.with_name("best.pt")
    for step in (1, 2):
        checkpoint.save(path, state(step))
        checkpoint.promote(path, best)
    assert checkpoint.load(best)["step"] == 2
    assert files(path) == ["best.pt", "best.pt.sha256", "last.pt", "last.pt.sha256"]


def test_a_reader_never_takes_a_newer_checkpoint_for_a_damaged_one(path: Path):
    checkpoint.save(path, state(0))
    done = threading.Event()

    def keep_saving() -> None:
        step = 0
        while not done.is_set():
            step += 1
            checkpoint.save(path, state(step))

    writer = threading.Thread(target=keep_saving)
    writer.start()
    try:
        steps = [checkpoint.load(path)["step"] for _ in range(150)]
    finally:
        done.set()
        writer.join(30)
    assert steps == sorted(steps)
    assert steps[-1] > 0
