"""Data sets are prepared once, whole or not at all; the generated one is the same everywhere."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import await_true
from tests.disks import needs_small_disks, remount_read_only, small_disk
from trainer.config import TrainConfig
from trainer.datasets import arrays, locks, shapes, store
from trainer.datasets.prepare import DataError, available, cached, open_prepared, peek, prepare

SHAPES = TrainConfig(dataset="shapes")
PREPARE_SHAPES = (
    "from trainer.config import TrainConfig; from trainer.datasets.prepare import prepare\n"
    "print(prepare(TrainConfig(dataset='shapes'), lambda text: print(text, flush=True)).path)"
)


def silent(_text: str) -> None:
    pass


def test_shapes_are_the_same_bytes_on_every_machine():
    made = shapes.build()
    digest = hashlib.sha256(made.train_images.tobytes() + made.test_images.tobytes()).hexdigest()
    assert digest == "edc3d804e43d8586628e7b0b1c6ffe34cb020bddf8e2aa9269dadbc907767d29"
    assert np.bincount(made.train_labels).tolist() == [800] * 10
    assert np.bincount(made.test_labels).tolist() == [200] * 10


def test_what_is_prepared_is_read_only_and_knows_its_sizes_classes_and_colours():
    told: list[str] = []
    made = prepare(SHAPES, told.append)
    assert told
    assert made.sizes == peek(SHAPES) == shapes.SIZES
    assert made.train_images.shape == (8000, 32, 32, 3)
    assert (made.train_images.dtype, made.train_labels.dtype) == (np.uint8, np.int64)
    assert len(made.classes) == 10
    assert made.notes
    pixels = made.train_images.reshape(-1, 3) / 255
    assert np.allclose(made.mean, pixels.mean(0), atol=1e-5)
    assert np.allclose(made.std, pixels.std(0), atol=1e-5)
    with pytest.raises(ValueError, match="read-only"):
        made.train_images[0] = 0
    again = open_prepared(made.path)
    assert (again.classes, again.mean, again.notes) == (made.classes, made.mean, made.notes)


def test_the_second_time_comes_from_the_cache_and_builds_nothing():
    first = prepare(SHAPES, silent)
    told: list[str] = []
    assert prepare(SHAPES, told.append).path == first.path
    assert set(told) == {"Checking the prepared pictures"}


def test_two_processes_at_once_do_the_work_once(start_process):
    two = [start_process(sys.executable, "-c", PREPARE_SHAPES, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in two]
    assert [process.returncode for process in two] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    assert sum("Drawing 10,000 shapes" in lines for lines in outputs) == 1


def test_a_killed_builder_leaves_no_broken_cache_and_the_next_cleans_up(start_process):
    stuck = (
        "import time; from trainer.datasets import shapes, store\n"
        "def progress(text):\n"
        "    if text.startswith('Saving'): print('building', flush=True); time.sleep(60)\n"
        "store.obtain(store.Source('thing-1', shapes.build), progress)"
    )
    process = start_process(sys.executable, "-c", stuck, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "building\n"
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    leftover = store.cache_root() / ".thing-1.building"
    assert leftover.exists()
    source = store.Source("thing-1", shapes.build)
    assert store.cached(source) is None
    assert store.obtain(source, silent).sizes == shapes.SIZES
    assert not leftover.exists()


def test_a_waiting_process_says_what_it_waits_for(start_process, tmp_path):
    release = tmp_path / "go"
    slow = (
        "import sys, time; from pathlib import Path; from trainer.datasets import shapes, store\n"
        "def build(progress):\n"
        "    print('building', flush=True)\n"
        f"    while not Path({str(release)!r}).exists(): time.sleep(0.02)\n"
        "    return shapes.build()\n"
        "store.obtain(store.Source('thing-1', build), lambda text: print(text, flush=True))"
    )
    first = start_process(sys.executable, "-c", slow, stdout=subprocess.PIPE)
    assert first.stdout.readline() == "building\n"
    second = start_process(sys.executable, "-c", slow, stdout=subprocess.PIPE)
    assert second.stdout.readline().startswith("Waiting for another process")
    release.touch()
    assert "building" not in second.communicate(timeout=60)[0]
    assert [path.name for path in store.cache_root().iterdir()] == ["thing-1"]
    assert first.wait(60) == second.returncode == 0


def test_a_failed_build_leaves_nothing_behind():
    def fail(_progress) -> store.Arrays:
        raise DataError("no such pictures")

    with pytest.raises(DataError, match="no such pictures"):
        store.obtain(store.Source("thing-1", fail), silent)
    assert list(store.cache_root().iterdir()) == []


@pytest.mark.parametrize("damage", ["meta", "array", "missing"])
def test_a_damaged_cache_is_refused_by_ranks_and_built_again_by_prepare(damage):
    path = prepare(SHAPES, silent).path
    match damage:
        case "meta":
            (path / "meta.json").write_text(json.dumps({"classes": []}))
        case "array":
            os.truncate(path / "train_images.npy", 1000)
        case "missing":
            (path / "test_labels.npy").unlink()
    with pytest.raises(DataError, match="no whole prepared"):
        open_prepared(path)
    assert cached(SHAPES) is None
    assert prepare(SHAPES, silent).sizes == shapes.SIZES


@pytest.mark.parametrize("place", ["a file", "/proc/nothing"])
def test_a_cache_that_cannot_be_written_is_one_sentence(place, tmp_path, monkeypatch):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(tmp_path / place))
    with pytest.raises(DataError, match="set PARALLEL_TRAINER_CACHE") as caught:
        prepare(SHAPES, silent)
    assert "\n" not in str(caught.value)


def test_outdated_versions_are_forgotten_after_a_day_without_use():
    build = store.Source("shapes-01", shapes.build).build
    old, recent = (store.obtain(store.Source(name, build), silent).path for name in ("shapes-01", "shapes-02"))
    os.utime(old / "meta.json", (0, 0))
    store.obtain(store.Source("shapes-03", build), silent)
    assert (old.exists(), recent.exists()) == (False, True)


def test_sizes_and_availability_are_known_without_preparing_anything(tmp_path):
    cifar = TrainConfig(data_dir=str(tmp_path / "none"))
    assert peek(cifar).num_train == 50_000
    assert not available(cifar)
    assert available(SHAPES)
    assert peek(TrainConfig(dataset="images", data_dir=str(tmp_path / "none"))) is None
    assert not available(TrainConfig(dataset="images", data_dir=str(tmp_path / "none")))
    assert not store.cache_root().exists()


def test_preparing_shapes_or_images_loads_no_torch(start_process):
    program = PREPARE_SHAPES + "\nimport sys; print('torch' in sys.modules, 'torchvision' in sys.modules)"
    process = start_process(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0].splitlines()[-1] == "False False"


def test_the_lock_is_free_after_its_holder_died(start_process):
    hold = (
        "import time; from trainer.datasets import store\n"
        "def build(progress): print('held', flush=True); time.sleep(60)\n"
        "store.obtain(store.Source('shapes-1', build), print)"
    )
    holder = start_process(sys.executable, "-c", hold, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    waiter = start_process(sys.executable, "-c", PREPARE_SHAPES, stdout=subprocess.PIPE)
    assert waiter.stdout.readline().startswith("Waiting")
    holder.kill()
    await_true(lambda: waiter.poll() is not None, what="the waiting process ended")
    assert waiter.returncode == 0


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [*(f"{part}.npy" for part in store.PARTS), "meta.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_one_flipped_bit_anywhere_in_the_cache_is_noticed_before_it_is_trained_on(name: str, share: float):
    """A cache of a few pictures; the flip is at the beginning, in the middle or at the end of the file."""
    built = []

    def build(progress) -> store.Arrays:
        built.append(1)
        draw = np.random.default_rng(0)
        pixels, labels = draw.integers(0, 255, (20, 32, 32, 3), np.uint8), np.arange(20) % 2
        return store.Arrays(("a", "b"), pixels, labels, pixels[:4], labels[:4])

    source = store.Source("few-1", build)
    good = store.obtain(source, silent)
    pixels = np.array(good.train_images)
    flip(good.path / name, round(share * ((good.path / name).stat().st_size - 1)))
    if not name.endswith("images.npy") or share == 0.0:  # pictures are checked once a run, by `prepare`
        with pytest.raises(DataError, match="no whole prepared"):
            open_prepared(good.path)
    again = store.obtain(source, silent)
    assert np.array_equal(again.train_images, pixels)
    assert again.mean == good.mean
    assert len(built) == 2


def test_checking_the_whole_of_cifar10_takes_a_part_of_a_second(tmp_path):
    (tmp_path / "180 MB").write_bytes(bytes(184_000_000))
    begun = time.monotonic()
    arrays.digest(tmp_path / "180 MB", lambda: None)
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["meta.json", "test_labels.npy", "train_images.npy"])
def test_what_is_no_file_in_the_cache_blocks_nobody_and_is_built_again(make, name: str):
    path = prepare(SHAPES, silent).path
    (path / name).unlink()
    make(path / name)
    with pytest.raises(DataError, match="no whole prepared"):
        open_prepared(path)
    assert prepare(SHAPES, silent).sizes == shapes.SIZES


def test_a_cache_that_is_deleted_while_it_is_open_can_be_read_to_its_end():
    made = prepare(SHAPES, silent)
    expected = np.array(made.train_images[-1])
    shutil.rmtree(store.cache_root())
    assert np.array_equal(made.train_images[-1], expected)
    with pytest.raises(DataError, match="no whole prepared"):
        open_prepared(made.path)
    assert prepare(SHAPES, silent).sizes == shapes.SIZES


def test_a_cache_that_is_deleted_while_it_is_built_is_one_sentence():
    def progress(text: str) -> None:
        if text.startswith("Saving"):
            shutil.rmtree(store.cache_root(), ignore_errors=True)

    with pytest.raises(DataError, match="cannot be written") as caught:
        prepare(SHAPES, progress)
    assert "\n" not in str(caught.value)
    assert prepare(SHAPES, silent).sizes == shapes.SIZES


@needs_small_disks
def test_a_full_cache_and_one_that_takes_no_writes_are_one_sentence_each_and_leave_nothing(tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", "2m") as disk:
        monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(disk))
        with pytest.raises(DataError, match=r"\(No space left on device\): set PARALLEL_TRAINER_CACHE"):
            prepare(SHAPES, silent)
        assert os.listdir(disk) == []
        remount_read_only(disk)
        with pytest.raises(DataError, match=r"\(Read-only file system\): set PARALLEL_TRAINER_CACHE"):
            prepare(SHAPES, silent)


@needs_small_disks
def test_a_cache_that_takes_no_writes_is_enough_for_what_is_in_it(tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", "64m") as disk:
        monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(disk))
        prepare(SHAPES, silent)
        remount_read_only(disk)
        assert prepare(SHAPES, silent).sizes == shapes.SIZES


def test_a_builder_removes_what_killed_builders_of_other_data_left_and_not_what_a_living_one_builds(start_process):
    root = store.cache_root()
    for name in (".shapes-0.building", ".shapes-2.building", ".ninja.building"):
        (root / name / "half").mkdir(parents=True)
    for name in ("shapes-0.lock", "poetry.lock"):
        (root / name).touch()
    (root / "shapes-new").mkdir()
    (root / "shapes-new" / "meta.json").touch()
    os.utime(root / "shapes-new" / "meta.json", (0, 0))
    hold = (
        "import sys, time; from pathlib import Path; from trainer.datasets.locks import locked\n"
        "with locked(Path(sys.argv[1]), print): print('held', flush=True); time.sleep(60)"
    )
    holder = start_process(sys.executable, "-c", hold, root / "shapes-2.lock", stdout=subprocess.PIPE)
    assert holder.stdout.readline() == "held\n"
    prepare(SHAPES, silent)
    assert sorted(os.listdir(root)) == [
        ".ninja.building",  # of others, as are poetry's lock and the folder with a name that we do not give
        ".shapes-2.building",
        "poetry.lock",
        "shapes-1",
        "shapes-2.lock",
        "shapes-new",
    ]


def test_a_lock_whose_file_was_removed_is_still_held_by_one_at_a_time(tmp_path):
    """Holders remove the file; who waited for it must not hold the removed one while another holds the new one."""
    inside, most = [], []

    def work() -> None:
        for _ in range(20):
            with locks.locked(tmp_path / "lock", lambda: None):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "POLL", 0.001)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert (len(most), max(most)) == (80, 1)
    assert os.listdir(tmp_path) == []
