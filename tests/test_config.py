"""Every setting is judged by its own name, all of them at once, and survives each of its four journeys."""

import json
import math
from typing import Any

import annotated_types
import pytest

import trainer.__main__ as command_line
from trainer.config import ConfigError, TrainConfig, choices, group
from trainer.devices import Gpu
from trainer.presets import PRESET_NOTES, PRESETS, closest_preset, to_argv

FIELDS = TrainConfig.model_fields
NUMBERS = [name for name, field in FIELDS.items() if field.annotation in (int, float)]
ODD = {
    "defaults": TrainConfig(),
    "text": TrainConfig(label="--lr 0; rm -rf / $(x) 'y' ü", data_dir="my pictures/é.zip"),
    "dashes": TrainConfig(label="-5", data_dir="-strange"),
    "a preset's name": TrainConfig(label="--preset=smoke"),
    "small numbers": TrainConfig(lr=1e-300, weight_decay=5e-324, label_smoothing=1 / 3, warmup=0.1 + 0.2),
    "large numbers": TrainConfig(lr=1e6, seed=2**31 - 1, max_steps=1_000_000_000, batch_size=65_536),
    "switches": TrainConfig(nesterov=True, compile=True, parallel="ddp", devices="3,1", processes=2),
}


def errors_of(**values: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        TrainConfig.parse(values)
    return caught.value.errors


def bounds(name: str) -> tuple[float, float, bool, bool]:
    """low, high, whether each bound itself is allowed."""
    low, high, low_in, high_in = -math.inf, math.inf, True, True
    for rule in FIELDS[name].metadata:
        match rule:
            case annotated_types.Ge(value):
                low = value
            case annotated_types.Gt(value):
                low, low_in = value, False
            case annotated_types.Le(value):
                high = value
            case annotated_types.Lt(value):
                high, high_in = value, False
    return low, high, low_in, high_in


def step_from(name: str, value: float, towards: float) -> Any:
    """The next value of the field's own type."""
    if FIELDS[name].annotation is int:
        return int(value + math.copysign(1, towards))
    return math.nextafter(value, towards)


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_two_bounds_that_hold_exactly(name: str):
    low, high, low_in, high_in = bounds(name)
    kind = FIELDS[name].annotation
    room = {"epochs": 10_000} if name == "warmup" else {}
    smallest = kind(low) if low_in else step_from(name, low, math.inf)
    largest = kind(high) if high_in else step_from(name, high, -math.inf)
    for fine in (smallest, largest):
        assert getattr(TrainConfig.parse({**room, name: fine}), name) == fine
    for wrong in (step_from(name, smallest, -math.inf), step_from(name, largest, math.inf)):
        assert list(errors_of(**{**room, name: wrong})) == [name]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(
    "value",
    [None, [], ["sgd"], {}, math.nan, math.inf, -math.inf, "x" * 10_000, 10**1000, -(10**9), 10**9 + 0.5, b"sgd", 2.7],
    ids=lambda value: repr(value)[:12],
)
def test_a_value_of_the_wrong_kind_is_refused_under_its_name(name: str, value: Any):
    if isinstance(value, float) and FIELDS[name].annotation is float and bounds(name)[1] >= value >= bounds(name)[0]:
        pytest.skip("a number like any other for this field")
    errors = errors_of(**{name: value})
    assert list(errors) == [name]
    assert len(errors[name]) < 200


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False, "1"])
def test_neither_a_switch_nor_a_word_is_a_number(name: str, value: Any):
    assert list(errors_of(**{name: value})) == [name]


@pytest.mark.parametrize("value", [0, 1, "true", 1.0])
def test_only_true_and_false_are_switches(value: Any):
    assert list(errors_of(nesterov=value, compile=value)) == ["nesterov", "compile"]


def test_all_problems_are_told_at_once_in_words():
    errors = errors_of(lr=0, epochs=2.7, batch_size=None, optimizer="adam", momentum=math.nan, learning_rate=1)
    assert errors == {
        "lr": "0 must be greater than 0",
        "epochs": "2.7 must be a whole number",
        "batch_size": "nothing must be a whole number",
        "optimizer": "adam must be 'sgd' or 'adamw'",
        "momentum": "nan must be a finite number",
        "learning_rate": "is not a setting",
    }


def test_an_unknown_key_of_any_length_is_named_in_short():
    (name,) = errors_of(**{"k" * 10_000: 1})
    assert len(name) <= 64


@pytest.mark.parametrize("value", ["", "0,", ",", "-1", "0;1", "gpu", "0,0", "1,01", "²", "99999", "0 1", "0x1"])
def test_devices_that_name_no_gpus_are_refused(value: str):
    assert list(errors_of(devices=value)) == ["devices"]


@pytest.mark.parametrize(("value", "kept"), [(" auto ", "auto"), ("cpu", "cpu"), ("3, 1", "3,1"), ("007", "7")])
def test_devices_are_kept_in_one_spelling(value: str, kept: str):
    assert TrainConfig.parse({"devices": value}).devices == kept


@pytest.mark.parametrize("value", ["", "   ", "a\0b", "a\nb", "\ud800", "x" * 4097])
def test_a_path_that_cannot_be_one_is_refused(value: str):
    assert list(errors_of(data_dir=value)) == ["data_dir"]


def test_settings_that_contradict_each_other_are_refused():
    assert errors_of(warmup=11.0) == {"warmup": "11.0 is longer than the run, which has epochs = 10"}
    assert list(errors_of(nesterov=True, momentum=0)) == ["nesterov"]


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        TrainConfig().lr = 1.0


def test_a_change_is_checked_too():
    assert TrainConfig().changed(lr=0.5).lr == 0.5
    with pytest.raises(ConfigError, match="lr: -1 must be greater than 0"):
        TrainConfig().changed(lr=-1)


@pytest.mark.parametrize("config", [*PRESETS.values(), *ODD.values()], ids=[*PRESETS, *ODD])
def test_json_gives_back_the_same_settings(config: TrainConfig):
    assert TrainConfig.from_json(config.model_dump_json()) == config
    assert TrainConfig.from_json(json.dumps(config.model_dump())) == config


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '"lr"', "[" * 100_000, '{"lr": NaN}', '{"lr": 1e999}'])
def test_json_that_is_no_object_of_settings_is_refused(text: str):
    with pytest.raises(ConfigError):
        TrainConfig.from_json(text)


@pytest.mark.parametrize("config", [*PRESETS.values(), *ODD.values()], ids=[*PRESETS, *ODD])
def test_the_command_line_gives_back_the_same_settings(config: TrainConfig, monkeypatch: pytest.MonkeyPatch):
    created: list[TrainConfig] = []
    gpus = [Gpu(index, f"GPU-{index}", "H200", 2**37, 2**36) for index in range(4)]
    monkeypatch.setattr(command_line, "list_gpus", lambda: gpus)
    monkeypatch.setattr(command_line, "_train", lambda run: created.append(run.config()))
    command_line.main(["train", *to_argv(config)])
    assert created == [config.anchored()]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_needs_no_flag_but_its_name(name: str):
    assert to_argv(PRESETS[name]) == ["--preset", name]
    assert closest_preset(PRESETS[name]) == name
    assert TrainConfig.parse(PRESETS[name].model_dump()) == PRESETS[name]
    assert PRESET_NOTES[name]


def test_every_field_has_a_title_a_help_and_a_place():
    for name, field in FIELDS.items():
        assert field.title
        assert field.description
        assert field.description[-1] == "."
        assert group(name) in ("main", "optimisation", "run", "lesson")
    assert {name for name in FIELDS if choices(name)} == {
        "dataset",
        "model",
        "parallel",
        "optimizer",
        "schedule",
        "augment",
        "precision",
    }
