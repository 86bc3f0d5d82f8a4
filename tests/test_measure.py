"""A run's own records tell its speed, its time and what it used; what was not measured is None and not 0."""

import json
from pathlib import Path

import pytest

from trainer.config import TrainConfig
from trainer.measure import measure
from trainer.runs import Run, RunError, event_writer

CPU, GPUS = ["AMD EPYC"], ["GPU 0 NVIDIA H200", "GPU 1 NVIDIA H200"]


@pytest.fixture
def run(runs_dir: Path) -> Run:
    return Run.create(runs_dir, TrainConfig(dataset="shapes"))


def write(run: Run, *events: tuple) -> None:
    """(kind, time, fields) each; the writer's own time is replaced."""
    writer = event_writer(run)
    for kind, _, fields in events:
        writer.write(kind, **fields)
    writer.close()
    lines = [json.loads(line) for line in run.events_path.read_text().splitlines()]
    for line, (_, time, _) in zip(lines, events, strict=True):
        line["time"] = time
    run.events_path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def start(time: float = 0.0, step: int = 0, devices: list[str] = CPU) -> tuple:
    return "start", time, {"step": step, "devices": devices, "world_size": len(devices), "precision": "fp32"}


def steps(rates: list[float], every: int = 10, after: int = 0) -> list[tuple]:
    numbers = [after + every * (i + 1) for i in range(len(rates))]
    return [
        ("step", step / 10, {"step": step, "epoch": 1.0, "loss": 1.0, "images_per_second": rate})
        for step, rate in zip(numbers, rates, strict=True)
    ]


def evaluation(time: float, step: int, accuracy: float) -> tuple:
    return "eval", time, {"step": step, "epoch": 1.0, "loss": 0.5, "accuracy": accuracy, "count": 10}


def test_speed_is_the_median_of_the_points_behind_the_warm_up(run):
    write(run, start(), *steps([1.0, 90.0, 100.0, 110.0, 5000.0]))
    assert measure(run).images_per_second == 105


def test_a_point_that_reaches_into_the_warm_up_does_not_count(run):
    write(run, start(), *steps([1.0, 2.0, 3.0, 90.0, 100.0, 110.0], every=2))
    assert measure(run).images_per_second == 100


def test_each_process_of_a_resumed_run_warms_up_anew(run):
    first, second = steps([1.0, 100.0, 100.0]), steps([1.0, 120.0, 120.0], after=30)
    write(run, start(), *first, start(3.0, step=30), *second)
    assert measure(run).images_per_second == 110


def test_fewer_than_three_points_measure_nothing(run):
    write(run, start(), *steps([1.0, 100.0, 100.0]))
    assert measure(run).images_per_second is None


def test_a_run_that_nobody_started_has_measured_nothing(run):
    found = measure(run)
    assert (found.status, found.images_per_second, found.accuracy, found.joules) == ("queued", None, None, None)
    assert (found.seconds, found.peak_memory, found.step) == (0.0, {}, 0)


def test_steps_that_a_resumed_run_took_back_do_not_count(run):
    lost = steps([1.0, 100.0, 100.0, 100.0, 9e9, 9e9])
    write(run, start(), *lost, start(9.0, step=40), *steps([1.0, 102.0], after=40))
    assert measure(run).images_per_second == 100


def test_time_is_that_of_the_processes_without_the_pause_between_them(run):
    write(run, start(100.0), evaluation(110.0, 10, 0.2), start(5000.0, step=10), evaluation(5007.0, 20, 0.5))
    assert measure(run).seconds == 17


def test_the_time_to_an_accuracy_ends_with_the_first_evaluation_that_reached_it(run):
    write(run, start(100.0), evaluation(110.0, 10, 0.2), start(5000.0, step=10), evaluation(5007.0, 20, 0.5))
    assert measure(run, 0.2).seconds_to_target == 10
    assert measure(run, 0.4).seconds_to_target == 17
    assert measure(run, 0.6).seconds_to_target is None
    assert measure(run).seconds_to_target is None


def test_an_evaluation_that_was_taken_back_reached_nothing(run):
    write(run, start(0.0), evaluation(10.0, 20, 0.9), start(20.0, step=10), evaluation(25.0, 20, 0.5))
    assert measure(run, 0.8).seconds_to_target is None
    assert measure(run).accuracy == 0.5


def samples(run: Run, *lines: object) -> None:
    (run.path / "system.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def gpus(time: float, *memory_and_power: tuple) -> dict:
    found = [{"index": i, "memory": memory, "power": power} for i, (memory, power) in enumerate(memory_and_power)]
    return {"time": time, "memory": 7, "gpus": found}


def test_peak_memory_on_the_cpu_is_that_of_all_processes(run):
    write(run, start())
    samples(run, {"time": 1, "memory": 100}, {"time": 2, "memory": 300}, {"time": 3, "memory": 200})
    assert measure(run).peak_memory == {"CPU": 300}


def test_peak_memory_and_energy_of_each_gpu(run):
    write(run, start(devices=GPUS))
    samples(run, gpus(1, (5, 100), (6, 100)), gpus(2, (9, 200), (4, 300)), gpus(3.5, (7, 100), (6, 100)))
    found = measure(run)
    assert found.peak_memory == {"GPU 0": 9, "GPU 1": 6}
    assert found.joules == 500 * 1 + 200 * 1.5
    assert (found.num_devices, found.is_cpu) == (2, False)


def test_energy_is_not_invented_over_a_gap_or_for_a_gpu_that_does_not_tell(run):
    write(run, start(devices=GPUS))
    samples(run, gpus(1, (5, 100)), gpus(100, (5, 100)), gpus(101, (5, None)))
    assert measure(run).joules is None


@pytest.mark.parametrize(
    "line",
    ["x", 3, None, {}, {"time": "1", "memory": 9}, {"time": 1, "memory": "9"}, {"time": 1, "memory": -9}],
)
def test_samples_that_are_none_are_passed_over(run, line: object):
    write(run, start())
    samples(run, line, {"time": 2, "memory": 5})
    assert measure(run).peak_memory == {"CPU": 5}


def test_a_line_that_was_cut_in_the_middle_is_passed_over(run):
    write(run, start())
    (run.path / "system.jsonl").write_text('{"time": 1, "memory": 5}\n{"time": 2, "mem')
    assert measure(run).peak_memory == {"CPU": 5}


def test_ranks_on_a_cpu_are_one_device(run):
    write(run, ("start", 0.0, {"step": 0, "devices": CPU, "world_size": 4, "precision": "fp32"}))
    assert (measure(run).num_devices, measure(run).world_size) == (1, 4)


def test_a_directory_without_settings_is_refused(runs_dir):
    with pytest.raises(RunError, match="is not a run"):
        measure(Run(runs_dir / "20260101-000000-single-0000"))


def test_what_other_programs_took_is_the_median_of_what_the_run_did_not_take_itself(run):
    write(run, start())
    taken = [(99.0, 60.0), (100.0, 98.0), (90.0, 50.0), (40.0, 41.0), (80.0, 10.0)]
    samples(run, *({"time": i, "cpu": cpu, "own": own} for i, (cpu, own) in enumerate(taken)), {"time": 9, "cpu": 99})
    assert measure(run).others == pytest.approx(0.39)


def test_records_that_do_not_tell_their_own_work_blame_nobody(run):
    write(run, start())
    samples(run, *({"time": i, "cpu": 99.0} for i in range(9)))
    assert measure(run).others is None
