"""The sentence about what limits a run: each branch of it, and its numbers from the events alone."""

import json
import re

import pytest

from trainer.event_reader import read_events
from trainer.verdict import Summary, summarise, verdict

CPU = {"backend": "gloo", "gradient_bytes": 33_902_120, "largest_layer": "fc1", "largest_layer_bytes": 33_558_528}
GPUS = {**CPU, "backend": "nccl", "parameters": 8_475_530}
STEP = {"data": 0.001, "forward": 0.010, "backward": 0.020, "optimizer": 0.002, "other": 0.001}


def said(start: dict, *ranks: dict[str, float]) -> str:
    return verdict(start, Summary(ranks, steps=10))


def numbers(text: str) -> list[float]:
    return [float(word) for word in re.findall(r"\d+(?:\.\d+)?", text)]


def test_a_rank_that_holds_the_others_up_is_named():
    text = said(CPU, {**STEP, "waiting": 0.030}, {**STEP, "data": 0.031})
    assert text.startswith("Rank 1 holds the others up: they wait 30 ms longer than it in each step, 47 % of the step.")


def test_exchange_on_a_shared_cpu_names_the_layer_and_promises_no_speed():
    text = said(CPU, *[{**STEP, "exchange": 0.053, "hidden": 0.007}] * 2)
    assert text == (
        "61 % of a step is gradient exchange, waiting for it included (53 ms): 33.9 MB a step, 99 % of it the layer "
        "fc1; another 7 ms hide behind backward. The ranks share one CPU: a larger batch shrinks that share, but adds "
        "no cores."
    )


def test_exchange_on_gpus_says_what_the_devices_bring_and_a_larger_batch_would():
    text = said(GPUS, *[{**STEP, "exchange": 0.017}] * 4)
    # 34 ms of computing and 17 of exchange: 4 x 34 / 51, and 4 x 68 / 85 at twice the batch.
    assert text.endswith("By these numbers 4 devices are 2.7 times as fast as one, and 3.2 times at twice the batch.")
    assert "hide behind" not in text


def test_exchange_that_eats_the_gain_says_at_which_batch_the_modes_break_even():
    text = said(GPUS, *[{**STEP, "exchange": 0.068}] * 2)
    # 68 ms of exchange against 1 x 34 that a second device saves.
    assert text.endswith(
        "By these numbers one device is faster; from 2.0 times the batch a device on, 2 would catch up."
    )


def test_data_parallels_copies_are_named_one_by_one():
    text = said({}, {**STEP, "scatter": 0.002, "replicate": 0.014, "gather": 0.001})
    assert text.startswith(
        "33 % of a step is nn.DataParallel's copying between the GPUs (scatter 2 ms, replicate 14 ms, gather 1 ms)"
    )


def test_late_pictures_are_named():
    assert said({}, {**STEP, "data": 0.011}).startswith("25 % of a step is waiting for its pictures (11 ms)")


def test_the_optimizer_says_its_share_at_twice_the_batch():
    text = said(GPUS, {**STEP, "optimizer": 0.018})
    # 18 of 50 ms; at twice the batch 18 of 18 + 2 x 32.
    assert numbers(text) == [36, 18, 8.48, 22]


def test_bookkeeping_is_named():
    assert said({}, {**STEP, "other": 0.009}).startswith(
        "21 % of a step is bookkeeping, most of it points of the chart (9 ms)"
    )


def test_a_run_that_only_computes_says_that_the_arithmetic_is_the_limit():
    assert said(CPU, *[{**STEP, "exchange": 0.002}] * 2) == (
        "83 % of a step is computing (forward 28 %, backward 56 %): the network's arithmetic is the limit, the rest is "
        "small (pictures 3 %, optimizer 6 %, exchange 6 %)."
    )
    assert "exchange" not in said({}, STEP)


def test_the_first_report_of_a_process_is_left_out_and_an_earlier_process_is_forgotten():
    def report(forward: float, steps: int) -> dict:
        return {"kind": "anatomy", "steps": steps, "ranks": [{"forward": forward}]}

    start = {"kind": "start"}
    old = [start, report(9, 10), report(9, 10)]
    assert summarise([*old, start, report(5, 1), report(1, 10), report(4, 20)]).of("forward") == pytest.approx(3)
    assert summarise([*old, start, report(5, 1)]).of("forward") == 5
    assert summarise([*old, start]) is None


def test_reports_of_another_number_of_ranks_are_not_mixed_in():
    mixed = [{"kind": "anatomy", "steps": 1, "ranks": [{"data": 1.0}] * count} for count in (1, 3, 2, 2)]
    assert len(summarise(mixed).ranks) == 2


@pytest.mark.parametrize(
    "ranks", [None, [], [None], [{"data": None}], [{"data": -1}], [{"data": "1"}], {"data": 1}, [{"data": 1e300}]]
)
def test_a_spoilt_report_is_no_report(tmp_path, ranks):
    file = tmp_path / "events.jsonl"
    file.write_text(json.dumps({"kind": "anatomy", "steps": 3, "ranks": ranks}) + "\n")
    assert summarise(read_events(file)) is None
    file.write_text(json.dumps({"kind": "anatomy", "steps": -3, "ranks": [{"data": 1}]}) + "\n")
    assert summarise(read_events(file)) is None


@pytest.mark.parametrize("ranks", [[{}], [{}, {}], [{"exchange": 1.0}] * 2, [{"data": 0.0}]])
def test_odd_numbers_make_odd_sentences_but_no_error(ranks):
    for start in ({}, CPU, GPUS):
        assert said(start, *ranks)
