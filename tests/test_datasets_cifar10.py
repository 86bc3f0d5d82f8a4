"""CIFAR-10 is downloaded once, checked before it is trusted, and explained when it cannot be had."""

import hashlib
import io
import os
import pickle
import shutil
import socket
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.disks import needs_small_disks, remount_read_only, small_disk
from trainer.config import TrainConfig
from trainer.datasets import cifar10, download, store
from trainer.datasets.prepare import DataError, available, prepare

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def small_cifar10() -> tuple[bytes, dict[str, bytes]]:
    """An archive laid out like the real one, with 20 pictures a batch."""
    rng = np.random.default_rng(0)
    content = {"batches.meta": pickle.dumps({"label_names": NAMES})}
    for name in (*cifar10.TRAIN, *cifar10.TEST):
        data = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
        content[name] = pickle.dumps({"data": data, "labels": [i % 10 for i in range(20)]})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(f"{cifar10.FOLDER}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue(), content


class Server:
    """Serves one file on loopback; `behaviour`: whole, short, stall (after half of it), silent, endless."""

    def __init__(self, data: bytes):
        self.data, self.behaviour, self.requests = data, "whole", 0
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests += 1
                if outer.behaviour == "silent":
                    outer.over.wait(30)
                    return
                self.send_response(200)
                if outer.behaviour != "endless":
                    self.send_header("Content-Length", str(len(outer.data)))
                self.end_headers()
                whole = outer.behaviour in ("whole", "endless")
                self.wfile.write(outer.data if whole else outer.data[: len(outer.data) // 2])
                if outer.behaviour == "stall":
                    self.wfile.flush()
                    outer.over.wait(30)

            def log_message(self, *_args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/{cifar10.ARCHIVE}"

    def close(self) -> None:
        self.over.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(10)


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    archive, content = small_cifar10()
    served = Server(archive)
    monkeypatch.setattr(cifar10, "URL", served.url)
    monkeypatch.setattr(cifar10, "ARCHIVE_MD5", md5(archive))
    for table in (cifar10.TRAIN, cifar10.TEST, cifar10.META):
        for name in list(table):
            monkeypatch.setitem(table, name, md5(content[name]))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield served
    served.close()


def config(folder: Path) -> TrainConfig:
    return TrainConfig(dataset="cifar10", data_dir=str(folder))


def silent(_text: str) -> None:
    pass


def test_it_is_downloaded_once_with_progress_and_kept_for_others(server, tmp_path):
    told: list[str] = []
    made = prepare(config(tmp_path / "data"), told.append)
    assert made.classes == tuple(NAMES)
    assert made.train_images.shape == (100, 32, 32, 3)
    assert made.test_labels.tolist() == [i % 10 for i in range(20)]
    assert any(text.startswith("Downloading CIFAR-10: ") and text.endswith(" MB") for text in told)
    assert "Unpacking CIFAR-10" in told
    assert [path.name for path in (tmp_path / "data").iterdir()] == [cifar10.ARCHIVE]
    prepare(config(tmp_path / "elsewhere"), silent)
    assert server.requests == 1


def test_channels_and_pixels_are_in_their_places(server, tmp_path):
    made = prepare(config(tmp_path), silent)
    with tarfile.open(tmp_path / cifar10.ARCHIVE) as archive:
        batch = pickle.load(archive.extractfile(f"{cifar10.FOLDER}/test_batch"))
    assert np.array_equal(made.test_images[3], batch["data"][3].reshape(3, 32, 32).transpose(1, 2, 0))


@pytest.mark.parametrize("unpacked", [False, True])
def test_put_there_by_hand_it_needs_no_network(server, unpacked, tmp_path):
    assert not available(config(tmp_path))
    (tmp_path / cifar10.ARCHIVE).write_bytes(server.data)
    if unpacked:
        with tarfile.open(tmp_path / cifar10.ARCHIVE) as archive:
            archive.extractall(tmp_path, filter="data")
        (tmp_path / cifar10.ARCHIVE).unlink()
    assert available(config(tmp_path))
    assert prepare(config(tmp_path), silent).sizes.num_train == 100
    assert server.requests == 0


def test_a_corrupt_archive_is_named_with_both_md5_and_never_opened(server, tmp_path):
    path = tmp_path / cifar10.ARCHIVE
    path.write_bytes(server.data[:-9] + b"different")
    with pytest.raises(DataError) as caught:
        prepare(config(tmp_path), silent)
    text = str(caught.value)
    for part in (str(path), md5(path.read_bytes()), md5(server.data), "delete it"):
        assert part in text
    assert server.requests == 0


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["data_batch_3", "batches.meta"])
def test_a_changed_batch_is_named_and_never_unpickled(server, name, tmp_path):
    with tarfile.open(fileobj=io.BytesIO(server.data)) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / cifar10.FOLDER / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(DataError, match=f"{name} is damaged, its md5 is .* expected .*: delete"):
        prepare(config(tmp_path), silent)
    assert not (tmp_path / "sprung").exists()


def test_a_damaged_folder_beside_a_good_archive_does_not_matter(server, tmp_path):
    (tmp_path / cifar10.FOLDER).mkdir()
    (tmp_path / cifar10.ARCHIVE).write_bytes(server.data)
    assert prepare(config(tmp_path), silent).sizes.num_test == 20


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def assert_explained(folder: Path, within: float) -> str:
    begun = time.monotonic()
    with pytest.raises(DataError) as caught:
        prepare(config(folder), silent)
    assert time.monotonic() - begun < within
    text = str(caught.value)
    for part in (str(folder), cifar10.URL, cifar10.ARCHIVE, cifar10.ARCHIVE_MD5, "shapes"):
        assert part in text
    assert list(folder.iterdir()) == []
    return text


def test_without_a_connection_it_says_within_seconds_what_to_put_where(server, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "URL", f"http://127.0.0.1:{closed_port()}/x.tar.gz")
    assert "refused" in assert_explained(tmp_path / "data", within=5)


def test_a_server_that_never_answers_ends_within_seconds(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        monkeypatch.setattr(cifar10, "URL", f"http://127.0.0.1:{silent_server.getsockname()[1]}/x.tar.gz")
        assert "does not answer" in assert_explained(tmp_path / "data", within=5)


def test_a_download_that_stalls_ends_and_leaves_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "STALL_SECONDS", 0.5)
    server.behaviour = "stall"
    assert "does not answer" in assert_explained(tmp_path / "data", within=10)


def test_a_download_that_breaks_off_says_where(server, tmp_path):
    server.behaviour = "short"
    assert "broke off at" in assert_explained(tmp_path / "data", within=10)


def test_a_proxy_is_honoured(server, tmp_path, monkeypatch):
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", server.url.rsplit("/", 1)[0])
    monkeypatch.setattr(cifar10, "URL", "http://nowhere.invalid/cifar-10-python.tar.gz")
    assert prepare(config(tmp_path), silent).sizes.num_train == 100


def test_another_file_at_the_address_is_refused(server, tmp_path, monkeypatch):
    server.data = b"<html>please log in</html>"
    with pytest.raises(DataError, match="is not CIFAR-10: its md5 is"):
        prepare(config(tmp_path / "data"), silent)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_data_path_that_cannot_be_written_is_one_sentence(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="choose another data path"):
        prepare(config(tmp_path / "file"), silent)
    assert not list(store.cache_root().glob("cifar10*[!k]"))


OFFLINE = """
import sys, time
from trainer.config import TrainConfig
from trainer.datasets import cifar10
from trainer.datasets.prepare import DataError, prepare
cifar10.URL = sys.argv[1]
begun = time.monotonic()
try:
    prepare(TrainConfig(dataset="cifar10", data_dir=sys.argv[2]), lambda text: None)
except DataError as error:
    print(time.monotonic() - begun, error)
"""


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="makes network namespaces, needs root")
@pytest.mark.parametrize("host", ["198.51.100.7", "www.example.org"])
def test_where_every_packet_is_swallowed_it_says_so_within_five_seconds(host: str, start_process, tmp_path):
    # A cable whose other end nobody listens to; with the neighbour's address known, nothing ever comes back.
    swallow = "ip link add v0 type veth peer name v1 && ip addr add 192.0.2.2/24 dev v0 && ip link set v0 up && "
    swallow += "ip link set v1 up && ip neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev v0 && "
    swallow += 'ip route add default via 192.0.2.1 && exec "$@"'
    program = (sys.executable, "-c", OFFLINE, f"https://{host}/{cifar10.ARCHIVE}", tmp_path / "data")
    out, _ = start_process("unshare", "-n", "sh", "-c", swallow, "sh", *program, stdout=-1).communicate(timeout=60)
    seconds, text = out.split(" ", 1)
    assert float(seconds) < 5
    assert text.count("\n") == 1
    assert "does not answer" in text or "resolution" in text
    assert os.listdir(tmp_path / "data") == []


def test_two_at_once_with_caches_of_their_own_download_once(server, tmp_path, monkeypatch):
    caches = threading.local()
    monkeypatch.setattr(store, "cache_root", lambda: caches.root)
    told: list[str] = []

    def work(name: str) -> None:
        caches.root = tmp_path / name
        prepare(config(tmp_path / "data"), lambda text: (told.append(text), time.sleep(0.01)))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert server.requests == 1
    assert "Waiting for another process that downloads CIFAR-10" in told
    assert os.listdir(tmp_path / "data") == [cifar10.ARCHIVE]
    assert all(list((tmp_path / name).glob("*/meta.json")) for name in ("one", "other"))


@pytest.mark.parametrize("by_hand", [False, True])
def test_what_a_killed_download_left_goes_with_the_next_start(server, tmp_path, by_hand):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / f".{cifar10.ARCHIVE}.part").write_bytes(b"a torso")
    if by_hand:
        (folder / cifar10.ARCHIVE).write_bytes(server.data)
    prepare(config(folder), silent)
    assert os.listdir(folder) == [cifar10.ARCHIVE]


def test_more_than_was_announced_is_refused(server, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "ARCHIVE_BYTES", 1000)
    server.behaviour = "endless"
    assert "larger than the 1000 bytes" in assert_explained(tmp_path / "data", within=10)


@needs_small_disks
def test_a_full_disk_and_one_that_takes_no_writes_are_one_sentence_each(server, tmp_path):
    server.data += bytes(3_000_000)
    with small_disk(tmp_path / "disk", "1m") as disk:
        with pytest.raises(DataError, match=r"cannot be written \(No space left on device\): choose another") as caught:
            prepare(config(disk), silent)
        assert "\n" not in str(caught.value)
        assert os.listdir(disk) == []
        remount_read_only(disk)
        with pytest.raises(DataError, match=r"cannot be written \(Read-only file system\): choose another"):
            prepare(config(disk), silent)


@needs_small_disks
def test_a_folder_that_takes_no_writes_is_enough_to_read_from(server, tmp_path):
    with small_disk(tmp_path / "disk", "4m") as disk:
        (disk / cifar10.ARCHIVE).write_bytes(server.data)
        remount_read_only(disk)
        assert prepare(config(disk), silent).sizes.num_train == 100


@pytest.mark.parametrize("name", [cifar10.ARCHIVE, cifar10.FOLDER])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_no_archive_and_blocks_nobody(server, tmp_path, make, name):
    make(tmp_path / name)
    assert not available(config(tmp_path))
    begun = time.monotonic()
    with suppress(DataError):
        prepare(config(tmp_path), silent)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("path", ["x" * 5000, "~nobody-of-that-name/x", "\0"])
def test_a_path_that_cannot_be_is_one_sentence_or_one_folder(path, tmp_path):
    for dataset in ("cifar10", "images"):
        settings = TrainConfig.model_construct(**{**TrainConfig().model_dump(), "dataset": dataset, "data_dir": path})
        assert not available(settings)
