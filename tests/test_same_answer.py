"""Whether modes learn the same: the difference of their losses beside that of another seed."""

from dataclasses import replace

import pytest

from tests.test_race_table import CPU_RUN
from trainer.config import TrainConfig
from trainer.events import EventWriter
from trainer.measure import LOSSES, measure
from trainer.race_table import Lane
from trainer.runs import Run
from trainer.same_answer import difference, same_answer


def lane(name: str, shift: float, steps: int = 10, is_changed: bool = False, **settings) -> Lane:
    parallel, _, count = name.split(" (")[0].partition(" x")
    config = CPU_RUN.config.changed(parallel=parallel, processes=int(count or 0), **settings)
    run = replace(CPU_RUN, config=config, losses=tuple((step, 2.0 + shift) for step in range(1, steps + 1)))
    return Lane(name, parallel, int(count or 1), [run], is_changed=is_changed)


SINGLE = lane("single", 0)


@pytest.fixture
def written(runs_dir):
    def make(count: int, offset: float) -> Run:
        run = Run.create(runs_dir, TrainConfig(dataset="shapes"), waits_here=True)
        events = EventWriter(run.events_path)
        events.write("start", step=0, world_size=1)
        for step in (1, *range(10, count + 1, 10)):
            events.write("step", step=step, loss=3.0 + offset if step % 30 else 2.0 + offset)
        events.write("step", step=count + 1, loss=None)
        events.close()
        return run

    return make


def test_the_difference_is_taken_at_the_steps_that_both_have():
    one, other = lane("single", 0, steps=10).runs[0], lane("single", -0.25, steps=7).runs[0]
    assert difference(one, other) == pytest.approx(0.25)
    assert difference(one, lane("single", 0, steps=4).runs[0]) is None, "too few"


def test_modes_that_differ_less_than_seeds_learn_the_same():
    (said,) = same_answer([SINGLE, lane("ddp x2", 0.01), lane("single (seed 1)", 0.2, is_changed=True, seed=1)])
    assert said == (
        "ddp x2 and single: at the same step their training losses are 0.01 apart on average, another seed changes "
        "them by 0.2: the same answer."
    )


def test_modes_that_differ_more_than_seeds_do_are_not_called_the_same():
    (said,) = same_answer([SINGLE, lane("ddp x2", -0.5), lane("single (seed 1)", 0.2, is_changed=True, seed=1)])
    assert "0.5 apart on average, another seed changes them by 0.2: more than chance." in said


def test_without_another_seed_no_judgement_is_made():
    (said,) = same_answer([SINGLE, lane("ddp x2", 0)])
    assert "are 0 apart on average. How much chance alone changes" in said


def test_another_batch_or_a_lesson_is_another_training_and_is_not_compared():
    others = [
        lane("ddp x2", 0, batch_size=64),
        lane("ddp x2 (lr 1)", 0, is_changed=True, lr=1.0),
        lane("dp x2", 0, steps=2),
    ]
    assert same_answer([SINGLE, *others]) == []
    assert same_answer([]) == same_answer([lane("ddp x2", 0)]) == same_answer([replace(SINGLE, runs=[None])]) == []


def test_runs_of_the_same_length_keep_the_same_steps_and_few(runs_dir, written):
    runs = [written(5000, offset) for offset in (0.0, 0.5)]
    one, other = map(measure, runs)
    assert len(one.losses) <= LOSSES
    assert [step for step, _ in one.losses] == [step for step, _ in other.losses]
    assert difference(one, other) == pytest.approx(0.5)
