"""Every case of the benchmarks does its work, and their ratios are taken round by round."""

import tempfile
from pathlib import Path

import pytest
import torch

from benchmarks import article, loops
from benchmarks.cases import TABLES
from benchmarks.page import write_run
from benchmarks.record import machine, paired, spread
from trainer.models import build_model
from trainer.run_list import list_runs

CASES = {  # one of each loop and network
    f"{case.loop.__name__} {case.options.get('model', '')}".strip(): case
    for table in TABLES.values()
    for case in table.cases.values()
}


@pytest.mark.parametrize("name", CASES)
def test_a_slice_of_each_loop_takes_its_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    case = CASES[name]
    small = {"count": 32, "batch_size": 16, "num_workers": 0}
    options = case.options | {key: value for key, value in small.items() if key in case.options}
    do_slice = case.loop(0, 1, **options)
    assert [do_slice(), do_slice()] == [32, 32]


@pytest.mark.parametrize("table", TABLES)
def test_ratios_are_taken_between_cases_of_the_table(table: str):
    pairs = TABLES[table].ratios
    assert pairs
    assert all(set(pair) <= set(TABLES[table].cases) for pair in pairs)


def test_the_rival_computes_what_our_network_does():
    ours, theirs = build_model("tutorial", 10), article.Net()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-5)


def test_both_data_paths_give_pictures_of_one_shape_and_scale():
    images, labels = loops.pictures(32)
    (batch, _), *_ = article.loader(images, labels, 32, num_workers=0)
    assert batch.shape == (32, 3, 32, 32)
    assert batch.abs().max() <= 1


def test_a_ratio_compares_what_was_measured_in_the_same_round():
    assert paired([2, 20], [1, 10]) == "2.00 (2.00 to 2.00)"
    assert spread([1000.4, 3000.0, 2000.0]) == "2,000 (1,000 to 3,000)"


def test_a_record_says_where_it_was_measured():
    facts = machine()
    assert facts["cores"] >= 1
    assert torch.__version__.startswith(facts["torch"])
    assert facts["commit"]


def test_a_written_run_is_one_that_the_product_reads(runs_dir: Path):
    write_run(runs_dir, 2000)
    (row,) = list_runs(runs_dir)
    assert (row["step"], row["best_accuracy"] is not None) == (2000, True)
