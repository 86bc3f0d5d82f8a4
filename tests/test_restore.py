"""A resumed run goes on from the newest checkpoint that can be used, says which others could not, never from zero."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.config import TrainConfig
from trainer.datasets.prepare import Prepared
from trainer.event_reader import read_events
from trainer.loop import train
from trainer.parallel import Worker
from trainer.processes import leave_now
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.session import Session, begin

CPU = torch.device("cpu")
CONFIG = TrainConfig(dataset="images", model="resnet9", epochs=3, batch_size=8, augment="none", precision="fp32")


def pictures(num_train: int = 24, classes: tuple[str, ...] = ("cat", "dog")) -> Prepared:
    pixels = np.random.default_rng(0).integers(0, 255, (num_train, 32, 32, 3), np.uint8)
    labels = np.arange(num_train) % 2
    return Prepared(classes, pixels, labels, pixels[:8], labels[:8])


def start(
    run: Run, config: TrainConfig = CONFIG, data: Prepared | None = None, worker: Worker | None = None
) -> Session:
    return begin(config, worker or Worker(0, 1, CPU), run, data or pictures(), RankRecord(run, 0))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three epochs of three steps: last.pt of step 9, previous.pt of step 6, best.pt of one of them."""
    run = Run.create(tmp_path_factory.mktemp("runs"), CONFIG)
    assert train(start(run)).step == 9
    return run


@pytest.fixture
def run(trained: Run, runs_dir: Path) -> Run:
    """A copy of it, with nothing in its events; the files are links, to be replaced and not written into."""
    copy = Run.create(runs_dir, CONFIG)
    for path in trained.path.glob("*.pt*"):
        os.link(path, copy.path / path.name)
    return copy


def damage(run: Run, *names: str) -> None:
    for name in names:
        path = run.checkpoint_path(name)
        data = path.read_bytes()[:-1]
        path.unlink()
        path.write_bytes(data)


def warnings(run: Run) -> list[str]:
    return [event["text"] for event in read_events(run.events_path) if event["kind"] == "warning"]


def step_of(run: Run, name: str) -> int:
    return checkpoint.load(run.checkpoint_path(name))["step"]


def test_a_whole_last_one_is_taken_without_a_word(run: Run):
    assert start(run).step == 9
    assert warnings(run) == []


def test_a_run_without_any_starts_at_the_beginning(runs_dir: Path):
    run = Run.create(runs_dir, CONFIG)
    assert start(run).step == 0
    assert warnings(run) == []


def test_a_damaged_last_one_is_named_and_the_previous_one_used_which_is_an_epoch_older(run: Run):
    damage(run, "last")
    session = start(run)
    assert session.step == 6
    (text,) = warnings(run)
    assert text == (
        f"{run.path}/last.pt is damaged: its SHA-256 is not the one noted beside it; "
        "the run goes on from previous.pt of step 6."
    )
    assert train(session).step == 9
    assert (step_of(run, "last"), step_of(run, "previous")) == (9, 6)


def test_what_goes_on_from_the_previous_one_ends_bit_equal(run: Run, trained: Run):
    damage(run, "last")
    train(start(run))
    ours, theirs = (checkpoint.load(r.checkpoint_path("last"))["model"] for r in (run, trained))
    assert all(map(torch.equal, ours.values(), theirs.values()))


def test_with_two_damaged_ones_both_are_named_and_the_best_is_used(run: Run):
    damage(run, "last", "previous")
    session = start(run)
    assert session.step == step_of(run, "best") > 0
    assert [text.split(" is damaged")[0] for text in warnings(run)] == [
        f"{run.path}/{name}.pt" for name in ("last", "previous")
    ]
    assert all(text.endswith(f"goes on from best.pt of step {session.step}.") for text in warnings(run))


@pytest.mark.parametrize("gone", [["last"], ["last", "previous"]])
def test_a_vanished_last_one_is_told_and_the_next_used(run: Run, gone: list[str]):
    for name in gone:
        run.checkpoint_path(name).unlink()
    assert run.has_checkpoint
    assert start(run).step > 0
    (text,) = warnings(run)
    assert text.startswith(f"there is no checkpoint {run.path}/last.pt; the run goes on from ")


def test_when_none_can_be_used_each_is_named_and_nothing_starts_from_zero(run: Run):
    damage(run, "last", "previous", "best")
    with pytest.raises(CheckpointError) as caught:
        start(run)
    text = str(caught.value)
    assert all(f"{name}.pt is damaged" in text for name in ("last", "previous", "best"))
    assert "start a new run" in text
    assert "\n" not in text
    assert warnings(run) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": CONFIG.changed(model="tutorial")}, "does not fit these settings"),
        ({"config": CONFIG.changed(optimizer="adamw")}, "trained with the optimizer sgd, and the run has adamw"),
        ({"data": pictures(32)}, "another number of pictures"),
        ({"data": pictures(classes=("cat", "fish"))}, "other classes"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason_for_each(run: Run, changes: dict, words: str):
    with pytest.raises(CheckpointError, match=words) as caught:
        start(run, **changes)
    assert str(caught.value).count(".pt ") == 3


def test_the_settings_of_the_run_decide_and_not_those_of_the_file(run: Run):
    session = start(run, CONFIG.changed(momentum=0.5, weight_decay=0.25))
    (group,) = session.optimizer.param_groups
    assert (group["momentum"], group["weight_decay"], group["fused"]) == (0.5, 0.25, True)


@pytest.mark.parametrize("best", [{}, {"accuracy": "0.5"}, {"accuracy": 0.5, "step": None}])
def test_a_checkpoint_whose_parts_are_of_other_kinds_is_passed_over(run: Run, best: dict):
    path = run.checkpoint_path("last")
    checkpoint.save(path, {**checkpoint.load(path), "best": best})
    assert start(run).step == 6
    assert "last.pt does not fit" in warnings(run)[0]


def _rank(rank: int, paths: list[Path], rendezvous: Path, steps: "mp.SimpleQueue") -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    try:
        session = start(Run(paths[rank]), worker=Worker(rank, 2, CPU))
        weights = sum(float(value.double().sum()) for value in session.model.state_dict().values())
        momenta = sum(float(s["momentum_buffer"].sum()) for s in session.optimizer.state.values())
        steps.put((rank, session.step, weights, momenta, session.best))
    except CheckpointError as error:
        steps.put((rank, str(error)))
    dist.destroy_process_group()
    leave_now()


def two_ranks(tmp_path: Path, *runs: Run) -> list[tuple]:
    context = mp.get_context("spawn")
    said = context.SimpleQueue()
    mp.spawn(_rank, ([run.path for run in runs], tmp_path / "rendezvous", said), nprocs=2)
    found = sorted(said.get() for _ in range(2))
    said.close()
    return [entry[1:] for entry in found]


@pytest.fixture
def _loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.usefixtures("_loopback")
@pytest.mark.parametrize("blind", ["finds other files", "finds none"])
def test_ranks_go_on_from_what_rank_0_found_also_where_they_would_find_something_else(
    run: Run, runs_dir: Path, tmp_path: Path, blind: str, trained: Run
):
    damage(run, "last")
    other = trained if blind == "finds other files" else Run.create(runs_dir, CONFIG)
    first, second = two_ranks(tmp_path, run, other)
    assert first == second
    assert first[0] == 6
    assert len(warnings(run)) == 1


@pytest.mark.usefixtures("_loopback")
def test_every_rank_is_told_when_none_can_be_used(run: Run, tmp_path: Path, trained: Run):
    damage(run, "last", "previous", "best")
    first, second = two_ranks(tmp_path, run, trained)
    assert first == second
    assert "no checkpoint of" in first[0]
