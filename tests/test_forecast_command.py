"""`python -m trainer forecast`: a table with its assumptions, one JSON document, and refusals that start nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_forecast import CPU, GPU
from trainer.__main__ import main
from trainer.calibration import Calibration, find
from trainer.config import TrainConfig
from trainer.devices import cpu_cores, cpu_name
from trainer.forecast_command import _entrants
from trainer.run_list import iter_runs

ROOT = Path(__file__).parents[1]
SMALL = ["--preset", "smoke", "--batch-size", "8", "--devices", "cpu", "--precision", "fp32"]


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:
    """A folder with a short race, its cache with a calibration, and what `forecast --against` it said."""
    folder = tmp_path_factory.mktemp("forecast")
    environment = {**os.environ, "PARALLEL_TRAINER_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    where = ["--runs-dir", str(folder / "runs"), "--json"]

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "trainer", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("race", "single", "ddp:2", *SMALL, "--max-steps", "20", *where)
    return folder, json.loads(run("forecast", "--against", "latest", *where)), run("forecast", *SMALL, "ddp:2")


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """Files of calibrations by the kind of device."""
    found = {}
    for name, made in (("cpu", CPU), ("gpu", GPU)):
        (tmp_path / f"{name}.json").write_text(made.model_dump_json())
        found[name] = str(tmp_path / f"{name}.json")
    return found


def said(capfd: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["forecast", *map(str, words)])
    return code, *capfd.readouterr()


def test_predicted_stands_beside_measured_with_the_error(raced):
    _, document, _ = raced
    assert [row["name"] for row in document["rows"]] == ["single", "ddp x2"]
    for row in document["rows"]:
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        assert row["is_calibrated"]
    assert document["race"]


def test_a_race_that_was_not_calibrated_before_is_calibrated_as_it_was_run_and_that_is_kept(raced, monkeypatch):
    folder, document, _ = raced
    made = Calibration.model_validate(document["calibration"])
    assert made.counts == {1, 2}
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(folder / "cache"))
    kept = find("tutorial", "sgd", "fp32", cpu_name(), cpu_cores())
    assert kept is not None
    assert kept.made >= made.made


def test_the_next_look_at_the_race_takes_what_was_kept(raced, monkeypatch, capfd):
    folder, _, _ = raced
    monkeypatch.setenv("PARALLEL_TRAINER_CACHE", str(folder / "cache"))
    code, out, err = said(capfd, "--against", "latest", "--runs-dir", folder / "runs")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split("  ")[0] == "mode"
    assert [line.split("  ")[0] for line in lines[1:3]] == ["single", "ddp x2"]
    assert ": off by" in lines[3]


def test_a_forecast_measures_prints_a_row_for_each_mode_and_its_assumptions_and_trains_nothing(raced):
    folder, _, out = raced
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["mode", "batch"]
    assert lines[1].startswith("ddp x2  4")
    assert any("tutorial in fp32" in line for line in lines[2:])
    assert len(list(iter_runs(folder / "runs"))) == 2  # those of the race


def test_a_calibration_of_another_machine_is_reckoned_with_and_nothing_is_measured(saved, capfd):
    code, out, err = said(capfd, "single", "ddp:4", "--json", "--calibration", saved["gpu"])
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert [row["name"] for row in document["rows"]] == ["single", "ddp x4"]
    assert Calibration.model_validate(document["calibration"]) == GPU
    assert document["assumptions"]


def test_machines_go_in_powers_of_two_up_to_a_thousand_and_more(saved, capfd):
    words = ["--machines", "1100", "--gpus", "4", "--network-gbit", "25", "--scaling", "weak", "--json"]
    code, out, _ = said(capfd, *words, "--calibration", saved["gpu"])
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["machines"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1100]
    assert rows[-1]["ranks"] == 4400
    assert "25 Gbit/s" in " ".join(json.loads(out)["assumptions"])


def test_without_gpus_named_a_machine_is_as_wide_as_the_one_that_was_measured(saved, capfd):
    names = {}
    for kind in ("cpu", "gpu"):
        _, out, _ = said(capfd, "--machines", "2", "--scaling", "weak", "--json", "--calibration", saved[kind])
        names[kind] = [row["name"] for row in json.loads(out)["rows"]]
    assert names == {"cpu": ["1 x 1", "2 x 1"], "gpu": ["1 x 4", "2 x 4"]}


def test_the_usual_ranks_are_powers_of_two():
    config = TrainConfig(devices="cpu")
    assert [entrant.word for entrant in _entrants((), config)] == ["single", "ddp:2", "ddp:4"]
    assert [entrant.word for entrant in _entrants(("ddp:8",), config)] == ["ddp:8"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dp:2"], "modes: nn.DataParallel is not forecast"),
        (["fsdp"], "modes: 'fsdp' is none"),
        (["ddp:3"], "batch_size: 128 cannot be shared equally by 3"),
        (["--lr", "0"], "lr: 0.0 must be greater than 0"),
        (["--machines", "0"], "machines: 0 devices must be from 1"),
        (["--machines", "100000", "--scaling", "weak"], "machines: "),
        (["--machines", "256"], "batch_size: 128 cannot be shared equally by 256 devices: take a multiple, or weak"),
        (["--machines", "2", "--gpus", "-1"], "gpus: -1 must be at least 0"),
        (["--machines", "2", "--gpus", "2", "--scaling", "weak", "--devices", "cpu"], "gpus: 2 cannot be forecast"),
        (["--network-gbit", "0"], "network_gbit: 0.0 must be greater than 0"),
        (["--network-gbit", "nan"], "network_gbit: nan must be"),
        (["--network-latency-us", "-1"], "network_latency_us: -1.0 must be at least 0"),
        (["--against", "latest"], "there is no race in"),
        (["single", "--against", "latest"], "against: the race says which modes"),
        (["--calibration", "nothing.json"], "calibration: nothing.json cannot be read"),
    ],
)
def test_what_cannot_be_forecast_says_why_before_anything_is_measured(capfd, tmp_path, words, message):
    code, out, err = said(capfd, *words, "--runs-dir", tmp_path / "runs")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "cache").exists()
