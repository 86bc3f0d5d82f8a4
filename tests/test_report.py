"""The report: one file that says what the runs' records say, needs no network, and runs nothing that they hold."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.test_race_facts import DDP2, DP2, SHAPES, SINGLE, finish
from trainer.race import create_race
from trainer.report import race_report, runs_report, thin, write_report
from trainer.runs import Run, RunError, event_writer


@pytest.fixture
def race(runs_dir: Path):
    made = create_race(runs_dir, SHAPES.changed(lr=0.125), [SINGLE, DP2, DDP2], repeats=2)
    for run, rate in zip(made.runs(), (200.0, 150.0, 148.0, 210.0), strict=True):
        finish(run, rate)
    return made


def curves(html: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="curves">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def words(html: str) -> str:
    """The text of the page before its scripts."""
    return re.sub(r"<[^>]+>", " ", html[html.index("<body>") : html.index('<script type="application/json"')])


def test_the_report_of_a_race_has_its_table_its_verdict_its_commands_and_a_curve_for_each_run(race):
    html = race_report(race)
    text = words(html)
    assert "single is the fastest here: 205 images/s. ddp x2 reaches 73 % of that." in text
    assert "needs two GPUs" in text
    assert "python -m trainer race single dp:2 ddp:2 --scaling strong --repeats 2" in text
    assert "--lr 0.125" in text
    assert [len(curve["step"]) for curve in curves(html)] == [20] * 4


def test_the_report_of_one_run_gives_the_command_that_repeats_it(race):
    run = race.runs()[0]
    html = runs_report([run])
    assert "python -m trainer train" in words(html)
    (curve,) = curves(html)
    assert curve["pictures"][-1] == 40 * 128
    assert (curve["tests"]["step"], curve["tests"]["accuracy"]) == ([40], [50.0])


def test_settings_in_which_runs_differ_stand_apart(race):
    text = words(runs_report(race.runs()[:2]))
    assert re.search(r"parallel\s+single\s+ddp", text)


def test_nothing_is_fetched(race):
    html = race_report(race)
    before_plotly = html[: html.index("<script>")]
    assert not re.search(r'(src|href)="', before_plotly)
    assert "Plotly" in html[html.index("<script>") :]


@pytest.mark.parametrize(
    "label", ["</script><script>alert(1)", "<img src=x onerror=alert(1)>", "&lt;b&gt;", "${title} $x"]
)
def test_a_label_is_text_and_nothing_else(runs_dir, label: str):
    run = Run.create(runs_dir, SHAPES.changed(label=label))
    finish(run)
    html = runs_report([run])
    assert html.count("</script>") == race_scripts()
    assert "<img" not in html[: html.index("<script>")]
    assert curves(html)[0]["name"] == label


def race_scripts() -> int:
    template = (Path(__file__).parents[1] / "trainer" / "report.html").read_text()
    return template.count("</script>")


def test_a_long_run_is_thinned_and_keeps_its_spikes(runs_dir):
    run = Run.create(runs_dir, SHAPES)
    finish(run)
    events = event_writer(run)
    events.write("start", step=40)
    for step in range(41, 20_041):
        events.write("step", step=step, epoch=1.0, loss=99.0 if step == 7_777 else 1.0)
    events.close()
    (curve,) = curves(runs_report([run]))
    assert len(curve["step"]) < 2_100
    assert 99.0 in curve["loss"]
    assert curve["step"][-1] == 20_040


def test_thinning_keeps_gaps_ends_and_extremes():
    assert thin([1.0, None, 2.0]) == [0, 1, 2]
    kept = thin([0.0] * 50 + [None] * 50 + [0.0] * 99 + [7.0], 10)
    assert {0, 199} <= set(kept)
    assert any(50 <= index < 100 for index in kept)
    assert kept == sorted(set(kept))


def test_minutes_leave_out_the_time_between_two_processes(runs_dir):
    run = Run.create(runs_dir, SHAPES)
    lines = [("start", 0, 100.0), ("step", 10, 160.0), ("start", 10, 9_000.0), ("step", 20, 9_060.0)]
    text = "".join(
        json.dumps({"kind": kind, "step": step, "time": at, **({"loss": 1.0} if kind == "step" else {})}) + "\n"
        for kind, step, at in lines
    )
    run.events_path.write_text(text)
    assert curves(runs_report([run]))[0]["minutes"] == [1.0, 2.0]


def test_without_a_run_there_is_no_report(race):
    for run in race.runs():
        run.delete()
    with pytest.raises(RunError, match="no run left"):
        race_report(race)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(RunError, match="cannot be written"):
        write_report("x", tmp_path / "nowhere" / "report.html")


def test_the_command_writes_the_file_and_refuses_what_it_cannot_report(race, runs_dir, tmp_path, trainer):
    target = tmp_path / "r.html"

    def report(*names: str) -> subprocess.CompletedProcess:
        return trainer("report", *names, "--runs-dir", str(runs_dir), "--output", str(target))

    done = report(race.id)
    assert (done.returncode, done.stdout.strip()) == (0, str(target))
    assert "is the fastest here" in target.read_text()
    before = target.stat().st_mtime_ns
    for names in ([race.id, race.runs()[0].id], ["20260101-000000-race-0000"], ["nothing"]):
        refused = report(*names)
        assert refused.returncode == 2
        assert refused.stderr.strip()
    assert target.stat().st_mtime_ns == before
    assert report(*(run.id for run in race.runs())).returncode == 0
    assert time.time() - target.stat().st_mtime < 60
