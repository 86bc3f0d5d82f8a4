"""What is asked before a race: what a person sets becomes settings, or a refusal that names the field."""

import pytest

from trainer.config import ConfigError, TrainConfig
from trainer.devices import Gpu
from trainer.presets import PRESETS
from trainer.race import Entrant
from ui.race_form import in_words, not_offered, offered, read, settings_note

RAW = {**PRESETS["smoke"].model_dump(), "max_steps": 7, "target_accuracy": 0.9, "parallel": "ddp", "processes": 4}


def gpus(count: int) -> list[Gpu]:
    return [Gpu(i, f"GPU-{i}", "NVIDIA H200", 10**11, 10**11) for i in range(count)]


def names(count: int) -> list[str]:
    return [entrant.name for entrant in offered(gpus(count))]


def test_without_a_gpu_dp_is_not_offered_and_the_reason_stands_there():
    assert names(0) == ["single", "ddp x1", "ddp x2", "ddp x4"]
    assert "dp needs two, so it is not offered" in not_offered([])
    assert "make nothing faster" in not_offered([])


def test_one_gpu_races_single_against_one_rank():
    assert names(1) == ["single", "ddp x1"]
    assert "There is one GPU" in not_offered(gpus(1))


@pytest.mark.parametrize(
    ("count", "counts"), [(2, ["x2"]), (3, ["x2", "x3"]), (4, ["x2", "x4"]), (8, ["x2", "x4", "x8"])]
)
def test_several_gpus_race_both_modes_over_two_four_and_all_of_them(count: int, counts: list[str]):
    expected = ["single", "ddp x1", *(f"{mode} {times}" for times in counts for mode in ("dp", "ddp"))]
    assert names(count) == expected
    assert not_offered(gpus(count)) == ""


@pytest.mark.parametrize(
    ("kind", "length", "field", "value"),
    [
        ("steps", 40, "max_steps", 40),
        ("steps", 40.0, "max_steps", 40),
        ("epochs", 2, "epochs", 2),
        ("accuracy", 62.5, "target_accuracy", 0.625),
        ("accuracy", 100, "target_accuracy", 1.0),
    ],
)
def test_a_length_goes_into_its_setting_and_the_other_limits_are_lifted(kind, length, field, value):
    base = read(RAW, ["single", "ddp:2"], "", "strong", kind, length, 2)["base"]
    assert getattr(base, field) == value
    assert base.max_steps == (value if field == "max_steps" else 0)
    assert base.target_accuracy == (value if field == "target_accuracy" else 0)


def test_the_mode_of_the_train_tab_is_not_that_of_a_race_and_all_else_is():
    asked = read(RAW, ["single", "ddp:2"], "", "weak", "steps", 40, 3)
    left_out = {"max_steps", "target_accuracy", "parallel", "processes"}
    assert asked["base"].model_dump(exclude=left_out) == TrainConfig(**RAW).model_dump(exclude=left_out)
    assert (asked["base"].parallel, asked["base"].processes) == ("single", 0)
    assert asked["entrants"] == [Entrant("single", 1), Entrant("ddp", 2)]
    assert (asked["scaling"], asked["repeats"]) == ("weak", 3)


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"modes": []}, "modes", "choose two or more"),
        ({"modes": None}, "modes", "choose two or more"),
        ({"modes": "single"}, "modes", "choose two or more"),
        ({"modes": ["single"]}, "modes", "choose two or more"),
        ({"modes": ["single", "ddp:2; rm -rf /"]}, "modes", "is none"),
        ({"modes": ["single", {"x": 1}]}, "modes", "is none"),
        ({"lesson": "pain"}, "lesson", "'pain' is not one of those offered"),
        ({"lesson": ["late"]}, "lesson", "is not one of those offered"),
        ({"lesson": "late", "modes": []}, "modes", "choose one or more"),
        ({"repeats": None}, "repeats", "is empty"),
        ({"repeats": 1.5}, "repeats", "whole number"),
        ({"repeats": True}, "repeats", "whole number"),
        ({"repeats": "2"}, "repeats", "whole number"),
        ({"length": None}, "length", "is empty"),
        ({"length": "x" * 10_000}, "length", "must be a number"),
        ({"length": [40]}, "length", "must be a number"),
        ({"length": True}, "length", "must be a number"),
        ({"length": float("nan")}, "length", "nan must be a whole number above 0"),
        ({"length": float("inf")}, "length", "inf must be a whole number above 0"),
        ({"length": 0}, "length", "0 must be a whole number above 0"),
        ({"length": 2.5}, "length", "2.5 must be a whole number above 0"),
        ({"length": -3, "kind": "epochs"}, "length", "-3 must be a whole number above 0"),
        ({"length": 10**9, "kind": "epochs"}, "length", "1000000000"),
        ({"length": 0, "kind": "accuracy"}, "length", "0 must be above 0 and at most 100 %"),
        ({"length": 101, "kind": "accuracy"}, "length", "101 must be above 0"),
        ({"length": float("nan"), "kind": "accuracy"}, "length", "nan must be above 0"),
        ({"kind": "forever"}, "until", "'forever' must be steps, epochs or accuracy"),
        ({"kind": ["steps"]}, "until", "must be steps, epochs or accuracy"),
        ({"raw": {**RAW, "lr": -1}}, "lr", "-1"),
    ],
)
def test_whatever_is_sent_is_refused_by_its_field(changes: dict, field: str, words: str):
    asked = {"raw": RAW, "modes": ["single", "ddp:2"], "lesson": "", "scaling": "strong", "kind": "steps"}
    asked |= {"length": 40, "repeats": 2}
    with pytest.raises(ConfigError) as caught:
        read(**{**asked, **changes})
    assert set(caught.value.errors) == {field}
    assert words in caught.value.errors[field]


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError) as caught:
        read(RAW, [], "", "strong", "steps", None, None)
    assert in_words(caught.value) == "Modes: choose two or more, or a lesson; Times: is empty; Length: is empty"


def test_a_setting_of_the_train_tab_is_named_with_the_place_where_it_is():
    assert in_words(ConfigError({"lr": "-1 must be greater than 0"})).endswith(
        "on the Train tab: -1 must be greater than 0"
    )


def test_the_settings_that_a_race_would_take_over_are_named_or_what_is_wrong_with_them():
    assert "preset smoke, tutorial on shapes, batch 128" in settings_note(dict(PRESETS["smoke"].model_dump()))
    assert "your own settings" in settings_note({**PRESETS["smoke"].model_dump(), "lr": 0.123})
    assert "settings to be fixed first" in settings_note({**RAW, "lr": None})


@pytest.mark.parametrize(
    ("lesson", "changes"),
    [
        ("late", {"slow_ms": 30}),
        ("buckets", {"bucket_mb": 1}),
        ("threads", {"threads": 1}),
        ("batch", {"batch_size": 32}),
        ("seed", {"seed": 1}),
    ],
)
def test_a_lesson_is_each_mode_as_it_is_and_right_after_it_with_the_change(lesson: str, changes: dict):
    asked = read(RAW, ["single", "ddp:2"], lesson, "strong", "steps", 40, 1)
    single, changed_single, ddp, changed_ddp = asked["entrants"]
    assert (single, ddp) == (Entrant("single", 1), Entrant("ddp", 2))
    assert dict(changed_single.changes) == dict(changed_ddp.changes) == changes
    assert (changed_ddp.parallel, changed_ddp.processes) == ("ddp", 2)
    assert [getattr(asked["base"], field) for field in changes] != [*changes.values()], "never on by accident"


def test_a_lesson_of_one_mode_is_a_race():
    assert len(read(RAW, ["ddp:2"], "late", "strong", "steps", 40, 1)["entrants"]) == 2
