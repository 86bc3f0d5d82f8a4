"""train.log holds what all processes of a run print; the terminal sees it too."""

import os
import sys
from pathlib import Path

import pytest

TALK = (
    "import os, subprocess, sys; from pathlib import Path; from trainer.log import say, tee_output\n"
    "with tee_output(Path(sys.argv[1])):\n"
    "    print('printed', flush=True); print('complained', file=sys.stderr); say('said'); os.write(2, b'written\\n')\n"
    "    subprocess.run([sys.executable, '-c', 'print(\"by a child\")'])\n"
    "    {}\n"
    "print('afterwards')"
)
WORDS = {"printed", "complained", "said", "written", "by a child"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train.log"


def test_all_output_goes_to_the_log_and_the_terminal(start_process, log: Path):
    process = start_process(sys.executable, "-c", TALK.format("pass"), log, stdout=-1, stderr=-1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert set(log.read_text().splitlines()) == WORDS
    assert set(out.splitlines()) == {*WORDS, "afterwards"}
    assert err == ""


def test_output_that_goes_to_the_log_already_is_not_doubled(start_process, log: Path):
    with log.open("a") as file:
        assert start_process(sys.executable, "-c", TALK.format("pass"), log, stdout=file, stderr=file).wait(60) == 0
    assert sorted(log.read_text().splitlines()) == sorted([*WORDS, "afterwards"])


def test_a_second_life_appends(start_process, log: Path):
    log.write_text("before\n")
    start_process(sys.executable, "-c", TALK.format("pass"), log, stdout=-3, stderr=-3).wait(60)
    assert log.read_text().startswith("before\n")
    assert len(log.read_text().splitlines()) == 1 + len(WORDS)


def test_a_failure_inside_ends_the_copying_and_passes_on(start_process, log: Path):
    process = start_process(sys.executable, "-c", TALK.format("raise ValueError('inside')"), log, stdout=-1, stderr=-1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ValueError: inside" in err
    assert "afterwards" not in out


def test_a_closed_terminal_ends_nothing(start_process, log: Path):
    reader, writer = os.pipe()
    process = start_process(sys.executable, "-c", TALK.format("pass"), log, stdout=writer, stderr=-3)
    os.close(writer)
    os.close(reader)
    process.wait(60)
    assert set(log.read_text().splitlines()) == WORDS


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_log_leaves_the_terminal_working(start_process):
    process = start_process(sys.executable, "-c", TALK.format("pass"), "/dev/full", stdout=-1, stderr=-1)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert set(out.splitlines()) == {*WORDS, "afterwards"}
