"""A folder or an archive of pictures: one layout, plainly refused when it is another."""

import errno
import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainer.config import TrainConfig
from trainer.datasets.prepare import DataError, Prepared, available, cached, peek, prepare

COLOURS = {"apple": (220, 30, 30), "leaf": (30, 200, 40), "sky": (60, 90, 230)}


def png(colour=(1, 2, 3), size=(48, 40)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def files(train: int = 4, test: int = 2) -> dict[str, bytes]:
    made = {}
    for part, count in (("train", train), ("test", test)):
        for name, colour in COLOURS.items():
            made |= {f"{part}/{name}/{i:03}.png": png(colour) for i in range(count)}
    return made


def folder(top: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return top


def archive(path: Path, content: dict[str, bytes], prefix: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for name, data in content.items():
                file.writestr(prefix + name, data)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as file:
        for name, data in reversed(content.items()):  # the order in the archive does not matter
            info = tarfile.TarInfo(prefix + name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def prepared(path: Path, progress=lambda _text: None) -> Prepared:
    return prepare(TrainConfig(dataset="images", data_dir=str(path)), progress)


def test_folder_and_every_kind_of_archive_give_the_same(tmp_path):
    content = files()
    places = [folder(tmp_path / "pictures", content), folder(tmp_path / "within" / "top", content).parent]
    places += [archive(tmp_path / f"a{ending}", content) for ending in (".zip", ".tar", ".tar.gz", ".tgz")]
    places += [archive(tmp_path / f"b{ending}", content, "./some top/") for ending in (".zip", ".tar.gz")]
    places += [archive(tmp_path / "holds one" / "data.zip", content).parent]
    made = [prepared(place) for place in places]
    for one in made:
        assert one.classes == ("apple", "leaf", "sky")
        assert one.train_labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert one.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert [tuple(picture[5, 5]) for picture in one.test_images[::2]] == list(COLOURS.values())
        assert np.array_equal(one.train_images, made[0].train_images)
        assert one.notes == ()


def test_nothing_is_unpacked_beside_the_archive(tmp_path):
    path = archive(tmp_path / "only" / "a.tar.gz", files())
    prepared(path)
    assert [item.name for item in path.parent.iterdir()] == ["a.tar.gz"]


def test_the_cache_follows_the_content(tmp_path):
    top = folder(tmp_path / "p", files())
    config = TrainConfig(dataset="images", data_dir=str(top))
    assert peek(config) is None
    first = prepared(top)
    assert peek(config) == first.sizes
    told: list[str] = []
    assert prepared(top, told.append).path == first.path
    assert set(told) == {"Looking into p", "Checking the prepared pictures"}
    folder(top, {"train/sky/more.png": png()})
    assert cached(config) is None
    assert len(prepared(top).train_labels) == len(first.train_labels) + 1


def test_the_cache_follows_an_archive_that_is_written_anew(tmp_path):
    path = archive(tmp_path / "a.zip", files())
    first = prepared(path)
    archive(path, files(train=5))
    os.utime(path, (1, 1))
    assert len(prepared(path).train_labels) == len(first.train_labels) + 3


def test_without_a_test_part_a_tenth_of_each_class_is_set_aside_and_said(tmp_path):
    content = {f"train/{name}/{i}.png": png((i, i, i)) for name in ("a", "b") for i in range(30)}
    made = prepared(folder(tmp_path / "p", content))
    assert np.bincount(made.test_labels).tolist() == [3, 3]
    assert np.bincount(made.train_labels).tolist() == [27, 27]
    assert "no test part" in made.notes[0]
    assert "6 pictures" in made.notes[0]
    again = prepared(archive(tmp_path / "p.zip", content))
    assert np.array_equal(made.test_images, again.test_images)


def test_strangers_in_the_folder_are_ignored(tmp_path):
    strange = {
        "readme.txt": b"hello",
        ".DS_Store": b"x",
        "train/.hidden/a.png": b"x",
        "train/apple/._000.png": b"x",
        "train/apple/notes.txt": b"x",
        "__MACOSX/train/apple/000.png": b"x",
        "train/loose.png": png(),
    }
    assert prepared(folder(tmp_path / "p", files() | strange)).sizes.num_train == 12
    assert prepared(archive(tmp_path / "p.zip", files() | strange)).sizes.num_train == 12


def test_deeper_folders_belong_to_their_class_and_links_are_followed(tmp_path):
    store = folder(tmp_path / "elsewhere", {"1.png": png(), "2.png": png()})
    top = folder(tmp_path / "p", {"train/a/x/y/1.png": png(), "train/a/2.png": png()})
    (top / "train" / "b").symlink_to(store)
    (top / "train" / "a" / "loop").symlink_to(top / "train" / "a")
    made = prepared(folder(top, {"test/a/1.png": png()}))
    assert made.classes == ("a", "b")
    assert np.bincount(made.train_labels).tolist() == [2, 2], "each picture once, also through a link to its own folder"


def test_a_few_unreadable_pictures_are_skipped_and_named(tmp_path):
    content = {f"train/{name}/{i:03}.png": png() for name in ("a", "b") for i in range(60)}
    content["train/b/007.png"] = b"damaged"
    made = prepared(folder(tmp_path / "p", content))
    assert made.sizes.num_train + made.sizes.num_test == 119
    assert made.notes[0] == "1 of 120 pictures could not be read and were left out: train/b/007.png."


def test_more_than_one_unreadable_picture_in_a_hundred_is_refused_naming_the_first(tmp_path):
    content = files() | {"train/apple/002.png": b"", "train/sky/001.png": b"x"}
    with pytest.raises(DataError, match=r"2 of 18 .* the first is train/apple/002.png \(The file is empty\)"):
        prepared(folder(tmp_path / "p", content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "expected train/<class>.*no pictures at all"),
        ({"notes.txt": b"x"}, "no pictures at all"),
        ({"a/1.png": png(), "b/1.png": png()}, "expected train/<class>.*1 in a, 1 in b"),
        ({"train/1.png": png()}, "expected train/<class>.*1 in train"),
        ({"train/a/1.png": png()}, "only one class, a"),
        (files() | {"test/zebra/1.png": png()}, "test/zebra has no counterpart train/zebra"),
        ({"train/a/1.png": png(), "train/b/1.png": png()}, "no class has two pictures"),
    ],
)
def test_another_layout_is_refused_with_what_was_expected_and_found(content, words, tmp_path):
    for place in (folder(tmp_path / "p", content), archive(tmp_path / "p.zip", content)):
        place.mkdir(exist_ok=True) if not content and not place.exists() else None
        with pytest.raises(DataError, match=words) as caught:
            prepared(place)
        assert str(place) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_damaged_archives_are_refused(tmp_path):
    good = {ending: archive(tmp_path / f"good{ending}", files()).read_bytes() for ending in (".zip", ".tar", ".tgz")}
    damaged = {f"half{ending}": data[: len(data) // 2] for ending, data in good.items()}
    damaged |= {"text.zip": b"words", "text.tar.gz": b"words", "empty.zip": b"", "empty.tar": b""}
    for name, data in damaged.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name):
            prepared(tmp_path / name)


def test_a_path_that_is_nothing_is_refused(tmp_path):
    (tmp_path / "data.rar").touch()
    for name in ("none", "data.rar"):
        assert not available(TrainConfig(dataset="images", data_dir=str(tmp_path / name)))
        with pytest.raises(DataError, match=r"neither a folder nor a .zip"):
            prepared(tmp_path / name)


def test_non_square_and_large_pictures_become_32_by_32_by_the_rule_of_prediction(tmp_path):
    content = files() | {"train/sky/big.png": png(COLOURS["sky"], (900, 300))}
    made = prepared(folder(tmp_path / "p", content))
    assert np.unique(made.train_images[-1].reshape(-1, 3), axis=0).tolist() == [list(COLOURS["sky"])]


def bomb() -> bytes:
    """400 million pixels in 50 kB."""
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "PNG")
    return buffer.getvalue()


def sixteen_bits() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((32, 32), 40_000, np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


UNREADABLE = {
    "nothing in it": (lambda path: path.touch(), "The file is empty"),
    "no picture": (lambda path: path.write_text("words"), "not a picture that can be read"),
    "cut": (lambda path: path.write_bytes(png(size=(500, 500))[:-300]), "damaged or incomplete"),
    "a bomb": (lambda path: path.write_bytes(bomb()), "million pixels"),
    "20 MB": (lambda path: path.write_bytes(png() + bytes(20_000_000)), "more than 10 MB"),
    "a pipe": (os.mkfifo, "cannot be read: it is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "cannot be read: it is not a regular file"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    "a link to nowhere": (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file or directory"),
    "what may not be read": (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: Input/output error"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_picture_that_cannot_be_read_is_left_out_and_named_and_of_too_many_the_first_is_told(kind: str, tmp_path):
    make, reason = UNREADABLE[kind]
    content = {f"train/{name}/{i:03}.png": png() for name in ("a", "b") for i in range(60)}
    top = folder(tmp_path / "p", content)
    make(top / "train" / "b" / "bad.png")
    made = prepared(top)
    assert made.sizes.num_train + made.sizes.num_test == 120
    assert made.notes[0] == "1 of 121 pictures could not be read and were left out: train/b/bad.png."
    make(top / "train" / "a" / "bad.png")
    with pytest.raises(DataError, match="2 of 122 pictures cannot be read, more than 1 in 100, the first is") as caught:
        prepared(top)
    assert "the first is train/a/bad.png (The " in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_named_like_a_picture_is_a_folder_and_16_bits_are_scaled(tmp_path):
    content = files() | {"train/apple/x.png/deeper.png": png(), "train/sky/deep.png": sixteen_bits()}
    made = prepared(folder(tmp_path / "p", content))
    assert made.notes == ()
    assert np.bincount(made.train_labels).tolist() == [5, 4, 5]
    assert np.unique(made.train_images[made.train_labels == 2][-1]).tolist() == [156]


def test_a_picture_that_vanishes_after_it_was_listed_is_named(tmp_path):
    content = {f"train/{name}/{i:03}.png": png() for name in ("a", "b") for i in range(60)}
    top = folder(tmp_path / "p", content)
    told: list[str] = []

    def progress(text: str) -> None:
        told.append(text)
        if text.startswith("Reading pictures"):
            (top / "train" / "b" / "059.png").unlink(missing_ok=True)

    made = prepared(top, progress)
    assert made.notes[0] == "1 of 120 pictures could not be read and were left out: train/b/059.png."


def test_large_pictures_that_cannot_be_read_are_named_by_the_threads_too(tmp_path):
    content = {f"train/{name}/{i:03}.png": noise() for name in ("a", "b") for i in range(60)}
    content["train/a/030.png"] = content["train/a/030.png"][:-1000]
    made = prepared(folder(tmp_path / "p", content))
    assert made.notes[0] == "1 of 120 pictures could not be read and were left out: train/a/030.png."


def noise() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((200, 200), 60).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("part", ["", "train", "train/apple"])
def test_a_folder_that_cannot_be_listed_is_refused_and_not_left_out(part: str, tmp_path, monkeypatch):
    """Its pictures would be missing without a word. Root may list all, so the refusal is made up."""
    top = folder(tmp_path / "p", files())
    real = os.scandir

    def scandir(path):
        if str(path) == str(top / part):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\): allow reading it") as caught:
        prepared(top)
    assert str(top / part) in str(caught.value)
