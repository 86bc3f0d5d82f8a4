"""CIFAR-10: the published archive, downloaded once or put there by hand, and never trusted before its md5 is right.

It is read in place: nothing is unpacked to the disk, data_dir may be read-only, and a stop is answered at once, which
torchvision's reader cannot do. Each batch is a pickle and is opened only when its own md5 is the published one.
"""

import hashlib
import os
import pickle
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainer.datasets.arrays import BLOCK
from trainer.datasets.download import download
from trainer.datasets.locks import TakenError, locked, refuse
from trainer.datasets.store import Arrays, DataError, Progress, Sizes, Source
from trainer.files import open_regular

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
ARCHIVE = "cifar-10-python.tar.gz"
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"
ARCHIVE_BYTES = 170_498_071
FOLDER = "cifar-10-batches-py"
TRAIN = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
}
TEST = {"test_batch": "40351d587109b95175f43aff81a1287e"}
META = {"batches.meta": "5ff9c542aee3614f3951f8cda6e48888"}
SIZES = Sizes(num_train=50_000, num_test=10_000, num_classes=10)


def source(data_dir: str) -> Source:
    """The content is known by its md5, so it is one cache entry wherever the archive lies."""
    folder = Path(os.path.expanduser(data_dir))
    return Source(f"cifar10-{ARCHIVE_MD5[:12]}", lambda progress: _build(folder, progress))


def on_disk(data_dir: str) -> bool:
    """Whether the archive or the unpacked folder is there, by name."""
    folder = Path(os.path.expanduser(data_dir))
    names = [folder / FOLDER / name for name in (*TRAIN, *TEST, *META)]
    return os.path.isfile(folder / ARCHIVE) or all(map(os.path.isfile, names))


def _build(folder: Path, progress: Progress) -> Arrays:
    try:
        return _arrays(_verified(folder, progress), progress)
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"CIFAR-10 from {folder} cannot be read ({reason}): mend that and start again") from error


def _verified(folder: Path, progress: Progress) -> dict[str, bytes]:
    """Each batch by its name, from the user's unpacked folder or the archive, with the md5 that was published."""
    archive, batches = folder / ARCHIVE, folder / FOLDER
    damage = None
    if os.path.isdir(batches):
        found = dict(_unpacked_batches(batches, progress))
        damage = _damaged(batches, found)
        if damage is None:
            return found
    if damage is not None and not os.path.isfile(archive):
        raise DataError(f"{damage}: delete {batches}, then CIFAR-10 is downloaded again")
    _obtain_archive(folder, archive, progress)
    found = dict(_packed_batches(archive, progress))
    damage = _damaged(archive, found)
    if damage is not None:
        raise DataError(f"{damage}: delete {archive} to have it downloaded again")
    return found


def _damaged(place: Path, found: dict[str, bytes]) -> str | None:
    for name, expected in {**TRAIN, **TEST, **META}.items():
        if name not in found:
            return f"{place / name} is missing"
        md5 = hashlib.md5(found[name], usedforsecurity=False).hexdigest()
        if md5 != expected:
            return f"{place / name} is damaged, its md5 is {md5}, expected {expected}"
    return None


def _unpacked_batches(batches: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    for name in (*TRAIN, *TEST, *META):
        if os.path.isfile(batches / name):
            with open_regular(batches / name) as file:
                yield name, _read(file, lambda: progress("Reading CIFAR-10"))


def _packed_batches(archive: Path, progress: Progress) -> Iterator[tuple[str, bytes]]:
    wanted = {f"{FOLDER}/{name}": name for name in (*TRAIN, *TEST, *META)}
    with open_regular(archive) as file, tarfile.open(fileobj=file, mode="r|gz") as members:
        for member in members:
            content = members.extractfile(member) if member.name in wanted else None
            if content is not None:
                yield wanted[member.name], _read(content, lambda: progress("Unpacking CIFAR-10"))


def _read(file: Any, tick: Callable[[], object]) -> bytes:
    blocks = []
    while block := file.read(BLOCK):
        blocks.append(block)
        tick()
    return b"".join(blocks)


def _md5(file: BinaryIO, tick: Callable[[], object]) -> str:
    md5 = hashlib.md5(usedforsecurity=False)
    while block := file.read(BLOCK):
        md5.update(block)
        tick()
    return md5.hexdigest()


def _arrays(found: dict[str, bytes], progress: Progress) -> Arrays:
    unpickled = {}
    with warnings.catch_warnings():  # the batches are pickles of an old numpy
        warnings.filterwarnings("ignore", message=r".*align should be passed", category=Warning)
        while found:
            progress("Reading CIFAR-10")
            name, data = found.popitem()
            unpickled[name] = pickle.loads(data, encoding="latin1")
    train, test = ([unpickled[name] for name in part] for part in (TRAIN, TEST))
    return Arrays(
        classes=tuple(unpickled["batches.meta"]["label_names"]),
        train_images=_images(train),
        train_labels=np.concatenate([np.asarray(batch["labels"], np.int64) for batch in train]),
        test_images=_images(test),
        test_labels=np.concatenate([np.asarray(batch["labels"], np.int64) for batch in test]),
    )


def _images(batches: list[dict[str, Any]]) -> np.ndarray:
    planes = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _obtain_archive(folder: Path, archive: Path, progress: Progress) -> None:
    """Make sure that the archive lies there and is the published one; downloads it if it is missing."""
    part = archive.with_name(f".{ARCHIVE}.part")
    if os.path.isfile(archive):
        _forget_part(part)
    else:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            waiting = "Waiting for another process that downloads CIFAR-10"
            with locked(part, lambda: progress(waiting)) as target:
                if not os.path.isfile(archive):  # the other process may have brought it
                    _download(folder, archive, target, progress)
        except OSError as error:
            raise DataError(
                f"{folder} cannot be written ({error.strerror}): choose another data path for the CIFAR-10 archive"
            ) from error
    with open_regular(archive) as file:
        found = _md5(file, lambda: progress("Checking CIFAR-10"))
    if found != ARCHIVE_MD5:
        raise DataError(
            f"{archive} is not the CIFAR-10 archive or is damaged: its md5 is {found}, expected {ARCHIVE_MD5}; "
            f"delete it to have it downloaded again, or put the file from {URL} there"
        )


def _forget_part(part: Path) -> None:
    """Remove what a killed download left, unless one is at work."""
    try:
        if os.path.lexists(part):
            with locked(part, refuse):  # it is gone afterwards
                pass
    except (OSError, TakenError):
        return


def _download(folder: Path, archive: Path, target: BinaryIO, progress: Progress) -> None:
    """Fetch the archive under another name; it gets its own when its md5 is right. Raises OSError of the disk."""
    target.truncate(0)
    try:
        found = download("CIFAR-10", URL, ARCHIVE_BYTES, target, progress)
    except ConnectionError as error:
        raise DataError(
            f"CIFAR-10 is not in {folder} and cannot be downloaded ({error}): put {ARCHIVE} from {URL} "
            f"(md5 {ARCHIVE_MD5}) into {folder}, or choose the data set shapes, which needs no download"
        ) from error
    if found != ARCHIVE_MD5:
        raise DataError(f"what {URL} sent is not CIFAR-10: its md5 is {found}, expected {ARCHIVE_MD5}; try again")
    target.flush()
    os.fsync(target.fileno())
    os.rename(target.name, archive)
