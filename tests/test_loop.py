"""The loop: the learning rate in force, what is logged, and every way in which a run ends."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.conftest import small_files
from trainer import checkpoint
from trainer.augment import plan_epoch
from trainer.config import TrainConfig, choices
from trainer.datasets.prepare import Prepared
from trainer.devices import cpu_has_bf16
from trainer.event_reader import read_events
from trainer.loop import evaluate, lr_factor, train
from trainer.parallel import Worker
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.session import Session, begin, choose_precision

CPU = torch.device("cpu")
SCHEDULES = choices("schedule")


def curve(schedule: str, total: int, warmup: float = 0) -> list[float]:
    return [lr_factor(step, total, warmup, schedule) for step in range(total)]


def test_without_warm_up_every_schedule_starts_at_the_full_rate():
    assert [lr_factor(0, 10, 0, schedule) for schedule in SCHEDULES] == [1.0] * len(SCHEDULES)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [1.0] * 8),
        ("triangular", [1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        ("step", [1, 1, 1, 0.2, 0.2, 0.04, 0.04, 0.008]),
        ("cosine", [0.5 * (1 + np.cos(np.pi * step / 8)) for step in range(8)]),
    ],
)
def test_each_schedule_falls_as_its_help_says(schedule: str, factors: list[float]):
    assert curve(schedule, 8) == pytest.approx(factors, abs=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "triangular"])
def test_the_warm_up_rises_evenly_to_the_full_rate(schedule: str):
    assert curve(schedule, 100, 4)[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 7, 100])
@pytest.mark.parametrize("warmup", [0, 0.5, 1, 6.5, 100, 1e4])
def test_no_step_is_without_a_rate_and_none_above_the_peak(schedule: str, total: int, warmup: float):
    factors = curve(schedule, total, warmup)
    assert all(0 < factor <= 1 for factor in factors)
    rising = [a < b for a, b in itertools.pairwise(factors)]
    assert rising == sorted(rising, reverse=True), "first up, then never up again"


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_cpu_trains_in_fp32_what_it_cannot_do_quickly(precision: str):
    assert choose_precision(precision, CPU) is None


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_a_cpu_uses_bf16_where_it_has_it(precision: str):
    assert choose_precision(precision, CPU) is (torch.bfloat16 if cpu_has_bf16() else None)


def striped(n: int) -> tuple[np.ndarray, np.ndarray]:
    """n noisy pictures of two classes: stripes across or along."""
    images = np.random.default_rng(0).integers(0, 100, (n, 32, 32, 3), np.uint8)
    labels = np.arange(n) % 2
    images[labels == 0, ::4] += 150
    images[labels == 1, :, ::4] += 150
    return images, labels


@pytest.fixture
def session(runs_dir: Path) -> Callable[..., Session]:
    """Begin, or go on with, a run on 24 training and 10 test pictures."""

    def make(run: Run | None = None, **values: Any) -> Session:
        small = {"batch_size": 8, "epochs": 2, "augment": "none", "precision": "fp32", "log_every": 2}
        config = TrainConfig(dataset="images", **{**small, **values})
        run = run or Run.create(runs_dir, config)
        prepared = Prepared(("across", "along"), *striped(24), *striped(10))
        return begin(config, Worker(0, 1, CPU), run, prepared, RankRecord(run, 0))

    return make


def events(run: Run, kind: str) -> list[dict]:
    assert "NaN" not in run.events_path.read_text()
    return [event for event in read_events(run.events_path) if event["kind"] == kind]


def test_it_learns_a_few_pictures_by_heart(session):
    made = session(batch_size=3, epochs=2, lr=0.01)
    assert train(made).status == "completed"
    steps = events(made.run, "step")
    assert steps[0]["loss"] > 0.5
    assert steps[-1]["loss"] < 0.1
    assert steps[-1]["accuracy"] == 1.0


def test_steps_count_from_1_and_the_first_the_last_and_each_epochs_last_are_logged(session):
    made = session(batch_size=5, epochs=2, log_every=4)
    assert train(made).step == 10
    steps = events(made.run, "step")
    assert [event["step"] for event in steps] == [1, 4, 5, 8, 10]
    assert [event["epoch"] for event in steps] == [0.2, 0.8, 1.0, 1.6, 2.0]
    assert all(event["grad_norm"] > 0 for event in steps)


def test_the_logged_loss_is_the_mean_over_all_pictures_since_the_last_point(session):
    made = session(batch_size=10, epochs=1, log_every=3, lr=1e-30, weight_decay=0.0)
    with torch.no_grad():
        plan = plan_epoch(24, 0, 0, "none")
        batches = list(made.train_set.batches(plan, 10))
        losses = [F.cross_entropy(made.model(b.images), b.labels, reduction="none") for b in batches]
    train(made)
    first, last = events(made.run, "step")
    assert first["loss"] == pytest.approx(losses[0].mean().item(), abs=1e-6)
    assert last["loss"] == pytest.approx(torch.cat(losses[1:]).mean().item(), abs=1e-6), "batches of 10 and of 4"


def test_the_rate_in_force_is_logged(session):
    made = session(epochs=2, schedule="triangular", warmup=1.0, lr=0.4, log_every=1)
    train(made)
    expected = [0.4 * factor for factor in curve("triangular", 6, 3)]
    assert [event["lr"] for event in events(made.run, "step")] == pytest.approx(expected)


def test_an_evaluation_counts_every_test_picture_once(session):
    made = session()
    made.test_set.batch_size = 4
    result = evaluate(made)
    images = torch.cat([images for images, _ in made.test_set.batches()])
    labels = torch.cat([labels for _, labels in made.test_set.batches()])
    with torch.no_grad():
        logits = made.model.eval()(images)
    assert result == {
        "loss": pytest.approx(F.cross_entropy(logits, labels).item(), abs=1e-6),
        "accuracy": (logits.argmax(1) == labels).double().mean().item(),
        "count": 10,
    }


@pytest.mark.parametrize(("eval_every", "epochs", "at"), [(1, 2, [3, 6]), (2, 3, [6, 9])])
def test_evaluations_come_when_due_and_at_the_end(session, eval_every: int, epochs: int, at: list[int]):
    made = session(eval_every=eval_every, epochs=epochs)
    train(made)
    assert [event["step"] for event in events(made.run, "eval")] == at


def test_a_step_limit_ends_the_run_in_its_middle_with_an_evaluation(session):
    made = session(max_steps=2, epochs=100)
    assert (train(made).status, made.step) == ("completed", 2)
    assert [event["step"] for event in events(made.run, "eval")] == [2]
    assert checkpoint.load(made.run.checkpoint_path("last"))["step"] == 2


def test_a_reached_target_ends_the_run(session):
    made = session(epochs=100, lr=0.02, target_accuracy=0.9)
    outcome = train(made)
    assert outcome.status == "completed"
    assert outcome.step < made.total_steps
    assert events(made.run, "eval")[-1]["accuracy"] >= 0.9


def test_patience_ends_a_run_that_gets_no_better(session):
    made = session(epochs=100, lr=1e-30, weight_decay=0.0, patience=2)
    assert train(made).status == "completed"
    assert len(events(made.run, "eval")) == 3, "the first is the best, the next two are no better"


def test_a_rate_far_too_high_diverges_and_keeps_finite_weights(session):
    made = session(lr=1e6, epochs=5, log_every=1)
    outcome = train(made)
    assert outcome.status == "diverged"
    assert f"not finite at step {outcome.step}" in outcome.error
    for event in events(made.run, "step"):
        assert event["loss"] is not None or event["nonfinite"]
    last = made.run.checkpoint_path("last")
    if last.exists():
        assert all(bool(t.isfinite().all()) for t in checkpoint.load(last)["model"].values())


def test_asked_to_stop_it_saves_where_it_is(session):
    made = session(epochs=100)
    made.run.ask_to_stop()
    outcome = train(made)
    assert (outcome.status, outcome.step) == ("stopped", 1)
    assert checkpoint.load(made.run.checkpoint_path("last"))["step"] == 1


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(session):
    made = session(epochs=2)
    with small_files(1_000_000):
        assert train(made).status == "completed"
    warnings = [event["text"] for event in events(made.run, "warning")]
    assert warnings == [
        "last.pt of step 3 could not be written (File too large); training goes on and tries again after each epoch."
    ]
    assert not list(made.run.path.glob("*.pt*"))
    assert len(events(made.run, "eval")) == 2


@pytest.mark.parametrize("stop_after", [2, 3])
@pytest.mark.parametrize(
    "values",
    [
        {"augment": "crop_flip_cutout", "schedule": "cosine"},
        {"model": "fast", "augment": "shift_flip", "lookahead": 2, "bias_lr": 64.0, "schedule": "triangular"},
    ],
    ids=["tutorial", "fast"],
)
def test_stopped_at_any_step_and_resumed_it_is_the_unbroken_run(session, values: dict, stop_after: int):
    values = {"epochs": 2, "log_every": 1, **values}
    whole = session(**values)
    train(whole)
    first = session(**values)
    beat = first.record.beat

    def stop_then_beat(step: int) -> None:
        beat(step)
        if step == stop_after:
            first.run.ask_to_stop()

    first.record.beat = stop_then_beat  # type: ignore[method-assign]
    assert train(first).status == "stopped"
    first.run.stop_path.unlink()
    second = session(run=first.run, **values)
    assert second.step == stop_after
    assert train(second).status == "completed"
    ours, theirs = second.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [e["step"] for e in events(first.run, "eval")] == [e["step"] for e in events(whole.run, "eval")]


def test_the_best_checkpoint_is_the_one_with_the_best_accuracy(session):
    made = session(epochs=3, lr=0.02)
    train(made)
    evaluations = {event["step"]: event["accuracy"] for event in events(made.run, "eval")}
    best = checkpoint.load(made.run.checkpoint_path("best"))
    assert best["step"] == max(evaluations, key=lambda step: (evaluations[step], -step))
    assert best["best"]["accuracy"] == max(evaluations.values())
    assert json.loads(json.dumps(best["config"])) == made.config.model_dump()


def test_the_biases_of_batchnorm_learn_at_their_own_rate(session):
    made = session(model="fast", epochs=1, lr=0.125, bias_lr=4.0)
    train(made)
    assert [group["lr"] for group in made.optimizer.param_groups] == [0.125, 0.5]
    assert {event["lr"] for event in events(made.run, "step")} == {0.125}


def test_lookahead_decides_where_a_run_ends(session):
    ends = {}
    for every in (0, 2):
        made = session(model="fast", epochs=2, lookahead=every)
        train(made)
        ends[every] = made.model.state_dict()
        if every:
            slow = made.lookahead.state_dict()
            assert all(torch.equal(ends[every][name], slow[name]) for name in slow)
    assert not torch.equal(ends[0]["fc.weight"], ends[2]["fc.weight"])


def test_a_run_that_takes_up_lookahead_later_averages_from_there(session):
    first = session(model="fast", epochs=1)
    train(first)
    second = session(run=first.run, model="fast", epochs=2, lookahead=2)
    assert torch.equal(second.lookahead.state_dict()["fc.weight"], first.model.state_dict()["fc.weight"])
    assert train(second).status == "completed"


def test_a_clipped_gradient_has_the_norm_of_the_limit(session):
    made = session(epochs=1, grad_clip=0.001, lr=1e-30)
    train(made)
    total = torch.nn.utils.get_total_norm([p.grad for p in made.model.parameters()])
    assert total.item() == pytest.approx(0.001, rel=1e-3)
    assert events(made.run, "step")[-1]["grad_norm"] > 0.001, "logged as it was before"


def test_a_checkpoint_of_other_classes_is_not_gone_on_with(session):
    made = session(max_steps=1)
    train(made)
    other = Prepared(("cat", "dog"), *striped(24), *striped(10))
    with pytest.raises(checkpoint.CheckpointError, match="other classes"):
        begin(made.config, made.worker, made.run, other, made.record)


def test_a_checkpoint_of_another_network_is_not_gone_on_with(session):
    made = session(max_steps=1)
    train(made)
    with pytest.raises(checkpoint.CheckpointError, match="does not fit these settings"):
        session(run=made.run, model="resnet9")
