"""CIFAR-10: the published archive, downloaded once or put there by hand, and never trusted before its md5 is right.

torchvision unpacks and reads it. The download is our own: it tells its progress, ends when the line is dead, and
leaves nothing under the archive's name that is not the archive. Imports no torch and no torchvision at import.
"""

import hashlib
import os
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from trainer.datasets.store import Arrays, DataError, Progress, Sizes, Source

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

CONNECT_SECONDS = 5.0  # until the server answers; the name look-up alone may hang for a minute
STALL_SECONDS = 15.0  # in which at least STALL_BYTES must arrive
STALL_BYTES = 16_384


def source(data_dir: str) -> Source:
    """The content is known by its md5, so it is one cache entry wherever the archive lies."""
    folder = Path(data_dir).expanduser()
    return Source(f"cifar10-{ARCHIVE_MD5[:12]}", lambda scratch, progress: _build(folder, scratch, progress))


def on_disk(data_dir: str) -> bool:
    """Whether the archive or the unpacked folder is there, by name."""
    folder = Path(data_dir).expanduser()
    return (folder / ARCHIVE).is_file() or all((folder / FOLDER / name).is_file() for name in (*TRAIN, *TEST, *META))


def _build(folder: Path, scratch: Path, progress: Progress) -> Arrays:
    try:
        root = _unpacked(folder, scratch, progress)
        progress("Reading CIFAR-10")
        return _read(root)
    except OSError as error:
        raise DataError(f"CIFAR-10 from {folder} cannot be unpacked or read ({error})") from error


def _unpacked(folder: Path, scratch: Path, progress: Progress) -> Path:
    """The folder in which cifar-10-batches-py is whole: the user's, or `scratch`."""
    archive, batches = folder / ARCHIVE, folder / FOLDER
    damage = _damaged(batches) if batches.is_dir() else None
    if batches.is_dir() and damage is None:
        return folder
    if not archive.is_file():
        if damage is not None:
            raise DataError(f"{damage}: delete {batches}, then CIFAR-10 is downloaded again")
        _download(folder, archive, progress)
    progress("Checking CIFAR-10")
    found = _md5(archive)
    if found != ARCHIVE_MD5:
        raise DataError(
            f"{archive} is not the CIFAR-10 archive or is damaged: its md5 is {found}, expected {ARCHIVE_MD5}; "
            f"delete it to have it downloaded again, or put the file from {URL} there"
        )
    progress("Unpacking CIFAR-10")
    os.symlink(archive.resolve(), scratch / ARCHIVE)  # unpacked beside the link: data_dir may be read-only
    _torchvision(scratch, train=False, download=True)
    return scratch


def _damaged(batches: Path) -> str | None:
    for name, expected in {**TRAIN, **TEST, **META}.items():
        path = batches / name
        if not path.is_file():
            return f"{path} is missing"
        if (found := _md5(path)) != expected:
            return f"{path} is damaged, its md5 is {found}, expected {expected}"
    return None


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _torchvision(root: Path, train: bool, download: bool = False) -> Any:
    """torchvision's CIFAR10, which checks every file's md5 before it unpickles one."""
    from torchvision.datasets import CIFAR10

    ((meta, meta_md5),) = META.items()
    published = {
        "url": URL,
        "filename": ARCHIVE,
        "tgz_md5": ARCHIVE_MD5,
        "base_folder": FOLDER,
        "train_list": list(TRAIN.items()),
        "test_list": list(TEST.items()),
        "meta": {"filename": meta, "md5": meta_md5, "key": "label_names"},
    }
    reader = type("Cifar10", (CIFAR10,), published)
    with warnings.catch_warnings():  # the batches are pickles of an old numpy
        warnings.filterwarnings("ignore", message=r".*align should be passed", category=Warning)
        try:
            return reader(str(root), train=train, download=download)
        except RuntimeError as error:
            raise DataError(f"{root / FOLDER} is not whole ({error}): delete it and start again") from error


def _read(root: Path) -> Arrays:
    train, test = _torchvision(root, train=True), _torchvision(root, train=False)
    return Arrays(
        classes=tuple(train.classes),
        train_images=np.ascontiguousarray(train.data),
        train_labels=np.asarray(train.targets, np.int64),
        test_images=np.ascontiguousarray(test.data),
        test_labels=np.asarray(test.targets, np.int64),
    )


def _download(folder: Path, archive: Path, progress: Progress) -> None:
    """Fetch the archive under another name; it gets its own when its md5 is right."""
    part = archive.with_name(f".{ARCHIVE}.part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target = part.open("wb")
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror}): choose another data path for the CIFAR-10 archive"
        ) from error
    try:
        with target:
            progress("Connecting to download CIFAR-10")
            with _connect() as response:
                found = _copy(response, target.write, progress)
        if found != ARCHIVE_MD5:
            raise DataError(f"what {URL} sent is not CIFAR-10: its md5 is {found}, expected {ARCHIVE_MD5}; try again")
        os.replace(part, archive)
    except (OSError, HTTPException) as error:  # URLError, a timeout and a full disk are OSErrors
        reason = getattr(error, "reason", error)
        reason = getattr(reason, "strerror", None) or reason
        raise DataError(
            f"CIFAR-10 is not in {folder} and cannot be downloaded ({reason}): put {ARCHIVE} from {URL} "
            f"(md5 {ARCHIVE_MD5}) into {folder}, or choose the data set shapes, which needs no download"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _connect() -> Any:
    """The server's answer. Honours http_proxy and https_proxy. Raises OSError, at the latest after CONNECT_SECONDS."""
    lock, answer, late = threading.Lock(), [], False

    def ask() -> None:
        request = urllib.request.Request(URL, headers={"User-Agent": "parallel-trainer"})
        try:
            outcome = urllib.request.build_opener().open(request, timeout=STALL_SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            outcome = error
        with lock:
            if not late:
                answer.append(outcome)
            elif not isinstance(outcome, Exception):
                outcome.close()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    with lock:
        late = True
    if not answer:
        raise TimeoutError(f"no answer within {CONNECT_SECONDS:g} s")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _copy(response: Any, write: Callable[[bytes], object], progress: Progress) -> str:
    """Copy to the end. Returns the md5. Raises OSError when the line is dead or as good as dead."""
    total = int(response.headers.get("Content-Length") or ARCHIVE_BYTES)
    md5, done, shown = hashlib.md5(usedforsecurity=False), 0, -1
    mark, deadline = 0, time.monotonic() + STALL_SECONDS
    while block := response.read1(1 << 16):
        write(block)
        md5.update(block)
        done += len(block)
        if done - mark >= STALL_BYTES:
            mark, deadline = done, time.monotonic() + STALL_SECONDS
        elif time.monotonic() > deadline:
            raise TimeoutError(f"fewer than {STALL_BYTES} bytes in {STALL_SECONDS:g} s")
        if (percent := min(100, 100 * done // total)) != shown:
            shown = percent
            progress(f"Downloading CIFAR-10: {percent} % of {total / 1e6:.0f} MB")
    if done < total:
        raise ConnectionError(f"the connection broke off at {100 * done // total} %")
    return md5.hexdigest()
