"""A race is a plan over ordinary runs: which modes, in which order; what cannot run here is said and not faked."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import islice, pairwise
from pathlib import Path

import pytest

from tests.conftest import await_true
from tests.page import end_runs
from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu
from trainer.event_reader import read_events
from trainer.queue import waiting_runs
from trainer.race import Entrant, Race, create_race, entrant_config, iter_races, open_race, usual_entrants
from trainer.run_list import iter_runs
from trainer.runs import Run, RunError, RunStatus

BASE = TrainConfig(dataset="shapes", batch_size=96, lr=0.1, devices="cpu", precision="fp32")
GPUS = [Gpu(i, f"GPU-{i}", "NVIDIA H200", 2**37, 2**37) for i in range(4)]
SINGLE, DP2, DDP1, DDP2 = (Entrant.parse(word) for word in ("single", "dp:2", "ddp:1", "ddp:2"))


# Modes


@pytest.mark.parametrize(
    ("word", "entrant", "name"),
    [
        ("single", ("single", 1), "single"),
        ("dp:3", ("dp", 3), "dp x3"),
        ("ddp:1", ("ddp", 1), "ddp x1"),
        ("ddp x4", ("ddp", 4), "ddp x4"),
        ("ddp", ("ddp", 2), "ddp x2"),
        ("ddp:2,slow_ms=30", ("ddp", 2), "ddp x2 (slow_ms 30)"),
        ("single,batch_size=32, nesterov=true", ("single", 1), "single (batch_size 32, nesterov True)"),
    ],
)
def test_a_mode_is_named_with_its_number_of_devices(word: str, entrant: tuple, name: str):
    parsed = Entrant.parse(word)
    assert (parsed.parallel, parsed.processes, parsed.name) == (*entrant, name)


@pytest.mark.parametrize("word", ["", "fsdp", "ddp:0", "ddp:", "ddp:-1", "single:2", "ddp:1000", "ddp:2;rm", "x" * 99])
def test_what_is_no_mode_is_refused_by_its_name(word: str):
    with pytest.raises(ConfigError, match=word[:9] or "''") as caught:
        Entrant.parse(word)
    assert set(caught.value.errors) == {"modes"}


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (0, ["single", "ddp x2"]),
        (1, ["single", "ddp x1"]),
        (2, ["single", "dp x2", "ddp x2"]),
        (4, ["single", "dp x2", "ddp x2", "dp x4", "ddp x4"]),
        (6, ["single", "dp x2", "ddp x2", "dp x4", "ddp x4", "dp x6", "ddp x6"]),
    ],
)
def test_what_is_raced_if_nobody_says_otherwise_is_what_the_machine_has(count: int, names: list[str]):
    gpus = [GPUS[0]] * count
    assert [entrant.name for entrant in usual_entrants(gpus)] == names


def test_a_mode_is_parsed_again_from_its_own_word():
    for word in ("single", "ddp:2", "ddp:2,slow_ms=30", "dp:4,lr=0.5,bucket_mb=1"):
        assert Entrant.parse(word).word == word


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("ddp:2,speed=11", "'speed' is no setting"),
        ("ddp:2,processes=3", "'processes' is no setting that a mode can have of its own"),
        ("ddp:2,devices=0", "'devices' is no setting"),
        ("ddp:2,slow_ms", "is none"),
        ("ddp:2,=3", "is none"),
    ],
)
def test_what_a_mode_cannot_change_is_refused(word: str, said: str):
    with pytest.raises(ConfigError) as caught:
        Entrant.parse(word)
    assert said in caught.value.errors["modes"]


@pytest.mark.parametrize("word", ["ddp:2,slow_ms=-1", "ddp:2,slow_ms=soon", "ddp:2,batch_size=0"])
def test_a_change_that_its_setting_refuses_is_a_refusal_of_that_mode(runs_dir, word: str):
    race = create_race(runs_dir, BASE, [SINGLE, Entrant.parse(word)])
    assert race.plan().lanes[1].refusal.startswith(word.rsplit("=", 1)[1])
    assert race.plan().lanes[1].runs == []


def test_a_change_holds_for_its_mode_alone_and_weak_scaling_multiplies_a_changed_batch(runs_dir):
    race = create_race(runs_dir, BASE, [DDP2, Entrant.parse("ddp:2,slow_ms=30,batch_size=48")], "weak")
    plain, changed = (Run(runs_dir / lane.runs[0]).config() for lane in race.plan().lanes)
    assert (plain.slow_ms, plain.batch_size) == (0, 192)
    assert (changed.slow_ms, changed.batch_size) == (30, 96)
    assert [lane.name for lane in race.lanes()] == ["ddp x2", "ddp x2 (slow_ms 30, batch_size 48)"]


def test_strong_scaling_changes_nothing_but_the_mode():
    config = entrant_config(BASE, DDP2, "strong", [])
    assert config == BASE.changed(parallel="ddp", processes=2)


def test_weak_scaling_keeps_the_batch_of_each_device_and_scales_the_learning_rate_with_their_number():
    config = entrant_config(BASE, DDP2, "weak", [])
    assert (config.batch_size, config.lr) == (192, pytest.approx(0.2))
    assert entrant_config(BASE, SINGLE, "weak", []) == BASE.changed(parallel="single")


def test_all_modes_begin_with_the_same_gpu_so_that_no_two_run_at_once():
    base = BASE.changed(devices="auto")
    chosen = [entrant_config(base, entrant, "strong", GPUS).devices for entrant in (SINGLE, DP2, DDP1, DDP2)]
    assert chosen == ["0", "0,1", "0", "0,1"]
    assert entrant_config(BASE.changed(devices="2,3"), DP2, "strong", GPUS).devices == "2,3"


@pytest.mark.parametrize("gpus", [[], GPUS[:1]])
def test_dp_without_two_gpus_is_not_raced_as_if_it_were_one(gpus: list[Gpu]):
    with pytest.raises(ConfigError, match="needs two GPUs"):
        entrant_config(BASE.changed(devices="auto"), DP2, "strong", gpus)


def test_more_devices_than_there_are_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="needs 8 GPUs, and there are 4"):
        entrant_config(BASE.changed(devices="auto"), Entrant("ddp", 8), "strong", GPUS)


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(ConfigError, match="96 cannot be shared equally by 5"):
        entrant_config(BASE, Entrant("ddp", 5), "strong", [])


def test_a_short_race_logs_often_enough_to_be_measured():
    assert entrant_config(BASE.changed(max_steps=40, log_every=10), SINGLE, "strong", []).log_every == 2
    assert entrant_config(BASE.changed(max_steps=4000, log_every=10), SINGLE, "strong", []).log_every == 10
    assert entrant_config(BASE.changed(log_every=10), SINGLE, "strong", []).log_every == 10


# The plan


def labels(race: Race) -> list[str]:
    return [run.config().label.rsplit(", race", 1)[0] for run in race.runs()]


def test_the_runs_of_a_race_are_queued_in_its_order_and_every_other_repeat_in_reverse(runs_dir):
    race = create_race(runs_dir, BASE, [SINGLE, DDP1, DDP2], repeats=3)
    first, second, third = [labels(race)[i : i + 3] for i in (0, 3, 6)]
    assert first == ["single, 1 of 3", "ddp x1, 1 of 3", "ddp x2, 1 of 3"]
    assert second == ["ddp x2, 2 of 3", "ddp x1, 2 of 3", "single, 2 of 3"]
    assert third == ["single, 3 of 3", "ddp x1, 3 of 3", "ddp x2, 3 of 3"]
    assert [run.id for run in waiting_runs(runs_dir)] == [run.id for run in race.runs()]


def test_a_repeat_stands_in_the_same_place_of_every_lane(runs_dir):
    race = create_race(runs_dir, BASE, [SINGLE, DDP2], repeats=2)
    by_id = {run.id: run.config().label for run in race.runs()}
    for lane in race.plan().lanes:
        assert ["1 of 2" in by_id[name] for name in lane.runs] == [True, False]


def test_a_label_of_your_own_stays_in_the_names(runs_dir):
    race = create_race(runs_dir, BASE.changed(label="x" * 64), [SINGLE, DDP2])
    assert [run.config().label[:12] for run in race.runs()] == ["single, xxxx", "ddp x2, xxxx"]


def test_a_mode_that_cannot_run_here_stays_in_the_table_with_the_reason(runs_dir):
    race = create_race(runs_dir, BASE, [SINGLE, DP2])
    single, dp = race.lanes()
    assert len(race.runs()) == 1
    assert single.refusal == ""
    assert "needs two GPUs" in dp.refusal


@pytest.mark.parametrize(
    ("field", "words", "arguments"),
    [
        ("modes", "are missing", ([],)),
        ("modes", "named twice", ([SINGLE, SINGLE],)),
        ("modes", "none of them can run here", ([DP2],)),
        ("scaling", "'both' must be", ([SINGLE], "both")),
        ("repeats", "0 must be from 1", ([SINGLE], "strong", 0)),
        ("repeats", "65 must be", ([SINGLE], "strong", 65)),
        ("repeats", "40 times 2 modes are more than 64 runs", ([SINGLE, DDP2], "strong", 40)),
    ],
)
def test_a_race_that_cannot_be_is_refused_by_its_field_and_leaves_nothing(runs_dir, field, words, arguments):
    with pytest.raises(ConfigError, match=words) as caught:
        create_race(runs_dir, BASE, *arguments)
    assert set(caught.value.errors) == {field}
    assert not runs_dir.exists()


def test_a_race_too_short_to_be_measured_is_refused(runs_dir):
    with pytest.raises(ConfigError, match="max_steps: 19 is too short"):
        create_race(runs_dir, BASE.changed(max_steps=19), [SINGLE])


def test_a_race_is_no_run(runs_dir):
    race = create_race(runs_dir, BASE, [SINGLE])
    assert [run.id for run in iter_runs(runs_dir)] == [run.id for run in race.runs()]


def test_races_are_found_newest_first_by_id_path_and_latest(runs_dir):
    with pytest.raises(RunError, match=r"no race in .* yet"):
        open_race(runs_dir, "latest")
    older, newer = create_race(runs_dir, BASE, [SINGLE]), create_race(runs_dir, BASE, [SINGLE])
    assert [race.id for race in iter_races(runs_dir)] == sorted((older.id, newer.id), reverse=True)
    assert open_race(runs_dir, "latest").id == next(iter_races(runs_dir)).id
    assert open_race(runs_dir, older.id) == older
    assert open_race(runs_dir, str(newer.path)).id == newer.id


@pytest.mark.parametrize("name", ["", "20260101-000000-race-0000", "..", "/etc/passwd"])
def test_what_is_no_race_is_refused(runs_dir, name: str):
    with pytest.raises(RunError, match="there is no race"):
        open_race(runs_dir, name)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"lanes": 3}', "{", "\x00"])
def test_a_damaged_plan_is_named_and_does_no_harm(runs_dir, text: str):
    race = create_race(runs_dir, BASE, [SINGLE])
    (race.path / "race.json").write_text(text)
    with pytest.raises(RunError, match=r"its race\.json cannot be read"):
        race.runs()


@pytest.mark.parametrize(
    "lane",
    [3, {}, {"parallel": "single"}, {"parallel": "single", "processes": 1, "refusal": "", "runs": [3]},
     {"parallel": "single", "processes": 1, "refusal": "", "runs": ["../../etc"]}],
)  # fmt: skip
def test_a_plan_that_somebody_has_written_by_hand_names_no_other_directory(runs_dir, lane: object):
    race = create_race(runs_dir, BASE, [SINGLE])
    (race.path / "race.json").write_text(json.dumps({**race.plan().model_dump(), "lanes": [lane]}))
    with pytest.raises(RunError, match=r"its race\.json cannot be read"):
        race.lanes()


def test_a_run_that_was_deleted_leaves_the_others_as_they_are(runs_dir):
    race = create_race(runs_dir, BASE, [SINGLE, DDP2], repeats=2)
    first = race.runs()[0]
    first.delete()
    assert len(race.runs()) == 3
    assert race.lanes()[0].runs[0] is None
    assert race.lanes()[0].runs[1] is not None


def test_a_race_that_is_stopped_before_its_first_run_leaves_the_queue_empty_and_can_go_on(runs_dir):
    race = create_race(runs_dir, BASE, [SINGLE, DDP2])
    assert race.is_on
    race.stop()
    assert waiting_runs(runs_dir) == []
    assert [state.status for state in race.states()] == [RunStatus.STOPPED] * 2
    assert not race.is_on
    race.stop()  # too late does no harm
    assert race.resume() == 2
    assert [run.id for run in waiting_runs(runs_dir)] == [run.id for run in race.runs()]
    assert race.resume() == 0


# Real runs


COMMAND = [
    "race",
    "--preset",
    "smoke",
    "--max-steps",
    "20",
    "--batch-size",
    "8",
    "--devices",
    "cpu",
    "--precision",
    "fp32",
]


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess]:
    """A race of three modes, of which two can run, twice each."""
    folder = tmp_path_factory.mktemp("raced")
    words = ["single", "dp:2", "ddp:2", "--repeats", "2", "--json", "--runs-dir", str(folder / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "trainer", *COMMAND, *words],
        env={
            **os.environ,
            "PARALLEL_TRAINER_CACHE": str(folder / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    return folder / "runs", done


def test_a_race_prints_one_document_with_a_row_for_each_mode(raced):
    runs_dir, done = raced
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    single, dp, ddp = document["rows"]
    assert [row["status"] for row in (single, dp, ddp)] == ["completed", "refused", "completed"]
    assert [row["repeats"] for row in (single, dp, ddp)] == [2, 0, 2]
    assert single["speed_up"] == 1
    assert ddp["speed_up"] > 0
    assert document["race"] == next(iter_races(runs_dir)).id
    assert document["report"] is None


def test_its_runs_went_one_after_the_other_with_the_same_pictures_and_start(raced):
    runs_dir, _ = raced
    runs = open_race(runs_dir, "latest").runs()
    events = [read_events(run.events_path) for run in runs]
    for before, after in pairwise(events):
        assert before[-1]["kind"] == "end"
        assert after[0]["time"] >= before[-1]["time"]
    first_losses = [next(event["loss"] for event in found if event["kind"] == "step") for found in events]
    assert first_losses == pytest.approx([first_losses[0]] * 4, rel=1e-4)


def test_a_race_is_shown_again_and_any_runs_are_compared(raced, trainer):
    runs_dir, done = raced
    shown = trainer("race", "--show", "latest", "--json", "--runs-dir", str(runs_dir))
    assert json.loads(shown.stdout) == json.loads(done.stdout)
    ids = [run.id for run in open_race(runs_dir, "latest").runs()]
    compared = trainer("race", "--of", *ids, "--json", "--runs-dir", str(runs_dir))
    rows = json.loads(compared.stdout)["rows"]
    assert [(row["name"], row["repeats"]) for row in rows] == [("single", 2), ("ddp x2", 2)]


def test_the_table_has_a_line_for_each_mode_the_reasons_and_a_sentence(raced, trainer):
    runs_dir, _ = raced
    lines = trainer("race", "--show", "latest", "--runs-dir", str(runs_dir)).stdout.splitlines()
    assert lines[0].split()[:2] == ["mode", "devices"]
    assert [line.split()[0] for line in lines[1:4]] == ["single", "dp", "ddp"]
    assert lines[5] == "dp x2: needs two GPUs or more: with fewer it trains as one device"
    for line, name in ((lines[4], "single"), (lines[6], "ddp x2")):
        assert re.match(rf"{name}: (\d+ % of a step is|Rank \d holds)", line), "what limits it"
    assert lines[7].startswith("ddp x2 and single: at the same step their training losses are"), "the same answer"
    assert re.search("is the fastest here|overlap over the repeats", lines[8])


def test_resuming_a_race_that_is_complete_starts_nothing(raced, trainer):
    runs_dir, done = raced
    again = trainer("race", "--resume", "latest", "--json", "--runs-dir", str(runs_dir))
    assert json.loads(again.stdout) == json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fsdp"], "modes: 'fsdp' is none"),
        (["dp:2"], "modes: none of them can run here"),
        (["single", "--show", "latest"], "race: give either modes"),
        (["single", "--max-steps", "5"], "max_steps: 5 is too short"),
        (["single", "--repeats", "99"], "repeats: 99 must be"),
        (["--show", "latest"], "there is no race in"),
        (["--of", "20260101-000000-ddp-0000"], "20260101-000000-ddp-0000"),
    ],
)
def test_a_command_that_cannot_be_done_says_why_and_starts_nothing(trainer, runs_dir, words: list[str], said: str):
    done = trainer(*COMMAND, *words, "--runs-dir", str(runs_dir))
    assert done.returncode == 2
    assert said in done.stderr
    assert list(iter_runs(runs_dir)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_whole_race_and_it_can_go_on(start_process, runs_dir, number: signal.Signals):
    settings = ["--preset", "smoke", "--epochs", "500", "--devices", "cpu", "--runs-dir", str(runs_dir)]
    process = start_process(sys.executable, "-m", "trainer", "race", "single", "ddp:2", *settings, stdout=-1, stderr=-1)
    try:
        await_true(lambda: _is_training(runs_dir), 120, "the first run to train")
        asked = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert time.monotonic() - asked < 30
    finally:
        end_runs(runs_dir)
    race = open_race(runs_dir, "latest")
    assert f"race --resume {race.id}" in err
    assert [state.status for state in race.states()] == [RunStatus.STOPPED] * 2
    assert waiting_runs(runs_dir) == []
    assert race.resume() == 2
    end_runs(runs_dir)


def _is_training(runs_dir: Path) -> bool:
    return any(Run.state(run).step for run in islice(iter_runs(runs_dir), 4))
