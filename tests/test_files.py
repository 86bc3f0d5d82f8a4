"""Leftovers of killed processes go, files of living ones stay, and nothing blocks on what is no file."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainer.files import (
    STALE_SECONDS,
    open_regular,
    remove_folder,
    remove_leftovers,
    remove_stale_folders,
    sync_folder,
    unlink_from_copies,
)
from trainer.runs import RUN_ID


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def test_what_is_no_file_is_refused_at_once(tmp_path: Path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("folder", "pipe", "endless", "loop", "nothing"):
        with pytest.raises(OSError):
            open_regular(tmp_path / name)
    (tmp_path / "file").write_text("x")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"x"


def test_temporary_files_of_killed_processes_go_and_all_others_stay(tmp_path: Path, start_process):
    gone, living = ended_pid(), start_process("sleep", "60").pid
    removed = [f".last.pt.{gone}", f".last.pt.sha256.{gone}", f".config.json.{gone}", ".x.json.99999999999999999999"]
    kept = [
        f".last.pt.{living}",
        f".process.{os.getpid()}",
        f".notes.{gone}",
        "last.pt",
        "last.pt.123",
        ".hidden",
        f".{gone}",
    ]
    for name in (*removed, *kept):
        (tmp_path / name).touch()
    (tmp_path / f".folder.{gone}").mkdir()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, f".folder.{gone}"])
    remove_leftovers(tmp_path / "nowhere")


def test_a_file_older_than_the_process_with_its_number_is_a_leftover(tmp_path: Path):
    mine = tmp_path / f".last.pt.{os.getpid()}"
    mine.touch()
    os.utime(mine, (1e9, 1e9))
    remove_leftovers(tmp_path)
    assert not mine.exists()


def test_runs_that_were_half_made_or_half_deleted_go_and_whole_ones_stay(tmp_path: Path):
    old, new, deleted, whole = (
        tmp_path / name
        for name in (
            ".20260101-000000-ddp-0a0a",
            ".20260101-000000-ddp-0a0b",
            ".deleted-20260101-000000-dp-0a0c",
            "20260101-000000-single-0a0d",
        )
    )
    hidden = tmp_path / ".20260101-000000-ddp-0a0e"  # by somebody who put a dot before its name
    for folder in (old, new, hidden, whole, tmp_path / ".git"):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    (hidden / "last.pt").write_text("weights")
    (deleted / "within").mkdir(parents=True)
    linked = tmp_path / ".20260101-000000-ddp-0a0f"
    linked.symlink_to(tmp_path / ".git")
    long_ago = time.time() - STALE_SECONDS - 10
    for folder in (old, hidden, linked, whole, tmp_path / ".git"):
        os.utime(folder, (long_ago, long_ago), follow_symlinks=False)
    remove_stale_folders(tmp_path, RUN_ID)
    kept = [".git", hidden.name, linked.name, new.name, whole.name]
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    assert (tmp_path / ".git" / "config.json").exists()


def test_a_folder_can_be_made_durable_and_a_missing_one_is_an_error(tmp_path: Path):
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "nowhere")


def test_a_link_to_a_neighbour_goes_without_it(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("run")
    remove_folder(tmp_path / "link")
    assert os.listdir(tmp_path) == ["run"]


def test_a_folder_behind_a_link_goes_with_the_link(tmp_path: Path):
    (tmp_path / "disk" / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "run")
    remove_folder(tmp_path / "link")
    assert os.listdir(tmp_path) == ["disk"]
    assert not os.listdir(tmp_path / "disk")


def test_a_file_with_other_names_becomes_one_of_its_own(tmp_path: Path):
    file, backup = tmp_path / "events.jsonl", tmp_path / "backup"
    file.write_text("old\n")
    os.link(file, backup)
    unlink_from_copies(file)
    with file.open("a") as appended:
        appended.write("new\n")
    assert (file.read_text(), backup.read_text()) == ("old\nnew\n", "old\n")
    unlink_from_copies(tmp_path / "none")
    assert sorted(os.listdir(tmp_path)) == ["backup", "events.jsonl"]
