"""The forecast's arithmetic: what was planted is found, limits are kept, published systems come out near the truth."""

import math
from pathlib import Path

import pytest

from tests import published
from trainer.calibration import Calibration, Compute, Exchange, at, find, fit, keep, read
from trainer.config import ConfigError
from trainer.forecast import (
    BACKWARD,
    BUCKET,
    FIRST_BUCKET,
    Network,
    beside,
    cluster,
    forecast,
    num_buckets,
    seen_of,
    slowest_of,
)
from trainer.forecast_words import against_cells, assumptions, cells, verdict
from trainer.runs import RunError

LATENCY, BYTE = 3e-4, 2e-9  # seconds: of an exchange over two ranks, and of each of its bytes
FIXED, PICTURE = 5e-3, 1e-4  # seconds: of a step of one rank, and of each of its pictures
SIZE = 40_000_000
FAST = Network(gbit=100, latency_us=5)


def calibration(is_cpu: bool = True, counts: tuple[int, ...] = (1, 2, 4), spread: float = 0.0) -> Calibration:
    """A machine that keeps to the model: on a CPU ranks share the cores, else each has a device."""
    return Calibration(
        model="tutorial",
        device="a device",
        is_cpu=is_cpu,
        cores=2,
        gradient_bytes=SIZE,
        compute=[
            Compute(ranks=n, batch=b, seconds=(FIXED + PICTURE * b) * (n if is_cpu else 1), spread=spread)
            for n in counts
            for b in (32, 64, 128)
        ],
        exchange=[
            Exchange(ranks=n, size=s, seconds=LATENCY * (n - 1) + BYTE * s * (n - 1) * (1 if is_cpu else 2 / n))
            for n in counts
            if n > 1
            for s in (64, 2**20, SIZE)
        ],
    )


CPU, GPU = calibration(), calibration(is_cpu=False)


# Lines


def test_a_line_finds_the_fixed_part_and_the_slope_that_were_planted():
    line = fit([(x, FIXED + PICTURE * x) for x in (8, 32, 128, 500)])
    assert (line.fixed, line.slope) == (pytest.approx(FIXED), pytest.approx(PICTURE))


def test_latency_and_bandwidth_are_found_though_sizes_differ_by_a_million():
    line = GPU.exchange_line(2)
    assert (line.fixed, line.slope) == (pytest.approx(LATENCY), pytest.approx(BYTE))


@pytest.mark.parametrize("points", [[(64, 0.1)], [(1, 1.0), (2, 4.0)], [(1, 2.0), (2, 1.0)], [(5, 1.0), (5, 3.0)]])
def test_no_part_of_a_line_is_negative_however_the_points_lie(points: list[tuple[float, float]]):
    line = fit(points)
    assert line.fixed >= 0
    assert line.slope >= 0


def test_what_was_measured_is_not_smoothed_away():
    points = [(1, 1.0), (2, 5.0), (4, 6.0)]
    assert [at(points, x) for x in (1, 1.5, 2, 3, 4)] == [1.0, 3.0, 5.0, 5.5, 6.0]
    assert at([(64, 0.3)], 64) == 0.3


# Ranks of one machine


@pytest.mark.parametrize("machine", [CPU, GPU])
@pytest.mark.parametrize("scaling", ["strong", "weak"])
def test_one_rank_is_what_all_is_compared_with(machine: Calibration, scaling):
    (row,) = forecast(machine, 128, [1], scaling)
    assert (row["name"], row["speed_up"], row["efficiency"]) == ("single", pytest.approx(1), pytest.approx(1))
    assert row["parts"]["exchange_seen"] == 0
    assert row["images_per_second"] == pytest.approx(128 / (FIXED + PICTURE * 128))


def test_strong_scaling_shares_the_batch_and_weak_scaling_multiplies_it():
    strong, weak = (forecast(GPU, 128, [4], scaling)[0] for scaling in ("strong", "weak"))
    assert (strong["batch_size"], strong["per_device_batch"]) == (128, 32)
    assert (weak["batch_size"], weak["per_device_batch"]) == (512, 128)


def test_on_a_cpu_compute_and_exchange_add_up():
    (row,) = forecast(CPU, 128, [2])
    assert row["parts"]["exchange_seen"] == row["parts"]["exchange"] == pytest.approx(LATENCY + BYTE * SIZE)
    assert row["seconds_per_step"] == pytest.approx(2 * (FIXED + PICTURE * 64) + LATENCY + BYTE * SIZE)


def test_ranks_that_share_cores_are_slower_than_one_and_more_of_them_slower_still():
    rates = [row["images_per_second"] for row in forecast(CPU, 128, [1, 2, 4, 8, 16])]
    assert rates == sorted(rates, reverse=True)


def test_a_cpu_is_one_device_as_in_a_race():
    (row,) = forecast(CPU, 128, [4])
    assert row["efficiency"] == row["speed_up"]


@pytest.mark.parametrize("machine", [CPU, GPU])
def test_what_was_not_calibrated_follows_the_law_that_the_calibrated_obey(machine: Calibration):
    few = calibration(machine.is_cpu, counts=(1, 2))
    assert few.compute_seconds(8, 32) == pytest.approx(calibration(machine.is_cpu, (1, 8)).compute_seconds(8, 32))
    assert few.exchange_seconds(8) == pytest.approx(calibration(machine.is_cpu, (1, 8)).exchange_seconds(8))
    assert [row["is_calibrated"] for row in forecast(few, 128, [1, 2, 8])] == [True, True, False]


def test_backward_hides_the_exchange_but_for_the_last_bucket():
    assert seen_of(False, 0.3, 0.1, 0.02) == 0.02
    assert seen_of(False, 0.3, 0.5, 0.02) == pytest.approx(0.5 - BACKWARD * 0.3)
    assert seen_of(False, 0.3, 0.01, 0.02) == 0.01
    assert seen_of(True, 0.3, 0.1, 0.02) == 0.1


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 1), (FIRST_BUCKET, 1), (FIRST_BUCKET + 1, 2), (FIRST_BUCKET + BUCKET, 2), (FIRST_BUCKET + BUCKET + 1, 3)],
)
def test_gradients_are_cut_into_buckets_as_ddp_cuts_them(size: int, count: int):
    assert num_buckets(size) == count


@pytest.mark.parametrize(
    ("batch", "counts", "field", "words"),
    [
        (0, [1], "batch_size", "0 must be at least 1"),
        (128, [3], "batch_size", "128 cannot be shared equally by 3 devices"),
        (128, [0], "machines", "0 devices must be from 1"),
        (128, [], "machines", "0 devices must be from 1"),
        (128, [70_000], "machines", "70000 devices must be from 1 to 65536"),
    ],
)
def test_what_cannot_be_reckoned_is_refused_by_its_field(batch: int, counts: list[int], field: str, words: str):
    with pytest.raises(ConfigError, match=words) as caught:
        forecast(CPU, batch, counts)
    assert set(caught.value.errors) == {field}


def test_several_ranks_without_a_calibrated_exchange_are_refused():
    with pytest.raises(ConfigError, match="ddp:2 cannot be forecast: no exchange"):
        forecast(calibration(counts=(1,)), 128, [2])


# Machines


@pytest.mark.parametrize("gpus", [1, 4])
def test_efficiency_over_machines_falls_up_to_a_thousand_and_never_exceeds_one(gpus: int):
    rows = cluster(calibration(is_cpu=False, spread=0.02), 128, [1, 2, 4, 16, 64, 256, 1024], gpus, FAST)
    efficiencies = [row["efficiency"] for row in rows]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert all(0 < efficiency <= 1 + 1e-9 for efficiency in efficiencies)
    assert rows[-1]["ranks"] == 1024 * gpus
    assert all(row["speed_up"] == pytest.approx(row["efficiency"] * row["ranks"]) for row in rows)


def test_a_network_that_costs_nothing_and_ranks_that_never_vary_scale_ideally():
    free = Network(gbit=100_000, latency_us=0, attained=1)
    (row,) = cluster(GPU, 128, [1024], 1, free)
    assert row["efficiency"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("changed", [{"gbit": 10}, {"latency_us": 500}, {"attained": 0.1}])
def test_a_worse_network_is_never_faster(changed: dict):
    good, bad = (cluster(GPU, 128, [64], 2, Network(**values))[0] for values in ({}, changed))
    assert bad["seconds_per_step"] > good["seconds_per_step"]


def test_an_all_reduce_moves_twice_the_bytes_at_most_and_takes_the_fewer_messages():
    network = Network(gbit=8, latency_us=10, attained=1)
    assert network.all_reduce(1, SIZE) == 0
    assert network.all_reduce(2, 10**9) == pytest.approx(1 + 2 * 10e-6)
    assert network.all_reduce(1024, 10**9) == pytest.approx(2 * 1023 / 1024 + 20 * 10e-6)
    assert network.all_reduce(1024, 10**9, messages=3) == pytest.approx(2 * 1023 / 1024 + 60 * 10e-6)


def test_the_slowest_of_many_is_later_the_more_there_are():
    factors = [slowest_of(count, 0.05) for count in (1, 2, 8, 64, 1024, 65_536)]
    assert factors[0] == 1
    assert factors == sorted(factors)
    assert slowest_of(2, 0.05) == pytest.approx(1 + 0.05 / math.sqrt(math.pi), rel=2e-3)  # the exact mean
    assert factors[-1] < 1 + 5 * 0.05


@pytest.mark.parametrize(
    ("machine", "batch", "counts", "gpus", "field"),
    [
        (CPU, 128, [2], 4, "gpus"),
        (GPU, 128, [0], 1, "machines"),
        (GPU, 128, [2], 0, "machines"),
        (GPU, 128, [65_536], 2, "machines"),
    ],
)
def test_machines_that_cannot_be_are_refused(machine, batch: int, counts: list[int], gpus: int, field: str):
    with pytest.raises(ConfigError) as caught:
        cluster(machine, batch, counts, gpus, FAST)
    assert set(caught.value.errors) == {field}


# Published systems


@pytest.mark.parametrize("system", published.SYSTEMS, ids=lambda system: f"{system.name} {system.machines}")
def test_a_published_system_is_forecast_within_15_percent(system: published.System):
    assert published.forecast_of(system) == pytest.approx(system.efficiency, rel=0.15)


def test_the_table_of_published_systems_in_the_document_is_what_is_reckoned_today():
    text = (Path(__file__).parents[1] / "docs" / "forecast.md").read_text()
    for row in published.rows():
        assert row in text


# Beside a race


def measured(name: str, parallel: str, processes: int, seconds: float | None, batch: int = 128, others: float = 0.0):
    return {
        "name": name,
        "parallel": parallel,
        "processes": processes,
        "batch_size": batch,
        "seconds_per_step": seconds,
        "is_changed": False,
        "speed_up": 0.5,
        "others": others,
    }


def test_the_error_is_what_was_predicted_over_what_was_measured():
    truth = forecast(CPU, 128, [1, 2])
    found = beside(
        CPU,
        [
            measured("single", "single", 1, truth[0]["seconds_per_step"]),
            measured("ddp x2", "ddp", 2, truth[1]["seconds_per_step"] / 1.1),
            measured("ddp x4", "ddp", 4, None),
            measured("dp x2", "dp", 2, 0.1),
        ],
    )
    assert [row["name"] for row in found] == ["single", "ddp x2", "dp x2"]
    assert [row["error"] for row in found] == [pytest.approx(0), pytest.approx(0.1), None]
    assert found[1]["predicted_speed_up"] == pytest.approx(truth[1]["speed_up"])
    assert against_cells(found[1])[3] == "+10.0 %"
    assert against_cells(found[2])[1:4] == ("-", "100.0", "-")
    assert "ddp x2 103.1 ms a step (+10%): off by 5% in the median" in verdict(found, CPU)


def test_a_race_by_weak_scaling_is_compared_at_the_batch_of_each_of_its_modes():
    weak = forecast(CPU, 64, [1, 2], "weak")
    found = beside(
        CPU,
        [
            measured("single", "single", 1, weak[0]["seconds_per_step"], batch=64),
            measured("ddp x2", "ddp", 2, weak[1]["seconds_per_step"], batch=128),
        ],
    )
    assert [row["error"] for row in found] == [pytest.approx(0), pytest.approx(0)]
    assert found[1]["predicted_speed_up"] == pytest.approx(weak[1]["speed_up"])


def test_what_cannot_be_forecast_of_a_race_has_no_error_and_does_no_harm():
    (few,) = beside(calibration(counts=(1,)), [measured("ddp x2", "ddp", 2, 0.1)])
    (odd,) = beside(CPU, [measured("ddp x3", "ddp", 3, 0.1)])
    assert few["error"] is odd["error"] is few["predicted_speed_up"] is None


def test_what_was_done_to_a_mode_on_purpose_is_not_held_against_the_forecast():
    late = measured("ddp x2 (slow_ms 30)", "ddp", 2, 0.2) | {"is_changed": True}
    assert beside(CPU, [late]) == []


def test_what_disturbed_the_race_is_said_beside_the_error():
    found = beside(CPU, [measured("single", "single", 1, 0.02, others=0.4)])
    assert "Other programs took up to 40% of this machine" in verdict(found, CPU)
    assert "left out" in verdict(beside(CPU, [measured("dp x2", "dp", 2, 0.1)]), CPU)


# Words and files


def test_the_assumptions_name_what_was_measured_and_what_was_not():
    words = "\n".join(assumptions(CPU, forecast(CPU, 128, [1, 2, 8]), "strong", None))
    assert "tutorial in fp32 on a device, with 1, 2 and 4 ranks at work" in words
    assert "exchanges 40.0 MB of gradients" in words
    assert "over 2 ranks here: 0.30 ms and 0.50 GB/s" in words
    assert "share 2 cores" in words
    assert "* reckoned beyond what was measured" in words
    assert "Between machines" not in words


def test_a_calibration_beside_other_programs_is_not_passed_over_in_silence():
    busy = CPU.model_copy(update={"others": 0.42})
    words = [" ".join(assumptions(made, forecast(made, 128, [1]), "strong", None)) for made in (busy, CPU)]
    assert "Other programs took 42% of this machine" in words[0]
    assert "Other programs took" not in words[1]


def test_the_assumptions_of_a_cluster_name_its_network():
    lonely = calibration(is_cpu=False, counts=(1,), spread=0.02)
    words = "\n".join(assumptions(lonely, cluster(lonely, 128, [2], 8, FAST), "weak", FAST))
    assert "100 Gbit/s of which 80% are reached, 5 us a message" in words
    assert "vary by 2.0%" in words
    assert "its devices count as joined by the network" in words
    assert "67% of the compute" in words


def test_a_row_has_a_cell_for_each_column_and_marks_what_was_not_calibrated():
    known, reckoned = (cells(row) for row in forecast(CPU, 128, [2, 8]))
    assert known[:2] == ("ddp x2", "64")
    assert reckoned[0] == "ddp x8 *"


def test_a_calibration_is_found_again_by_what_it_was_made_of_and_by_nothing_else():
    path = keep(CPU)
    assert read(path) == CPU
    assert find("tutorial", "sgd", "fp32", "a device", 2) == CPU
    assert find("tutorial", "adamw", "fp32", "a device", 2) is None
    assert find("tutorial", "sgd", "bf16", "a device", 2) is None
    assert find("tutorial", "sgd", "fp32", "another", 2) is None
    assert find("tutorial", "sgd", "fp32", "a device", 4) is None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "\x00", '{"model": 3}', CPU.model_dump_json().replace('"seconds":0', '"seconds":-0')]
)
def test_a_damaged_calibration_is_named_and_never_reckoned_from(tmp_path: Path, text: str):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(RunError, match=r"c\.json holds none"):
        read(tmp_path / "c.json")
    with pytest.raises(RunError, match="cannot be read"):
        read(tmp_path / "nothing.json")
