"""TrainConfig <-> widgets: every field has one, nothing wrong gets through, nothing typed gets lost."""

import math
from pathlib import Path

import pytest

from tests.conftest import ROOT
from trainer.config import ConfigError, TrainConfig, choices, group
from trainer.devices import Gpu
from trainer.placement import place
from trainer.presets import PRESETS
from ui.form import CUSTOM, FIELDS, NO_GPU, Form, bounds, one_kind, parse, preset_of, recipe, summary, title
from ui.meaning import explain, python, refusal, shell

GPUS = [Gpu(index, f"GPU-{index}", "NVIDIA H200", 140 * 2**30, (100 + index) * 2**30) for index in (0, 1, 3)]
DEFAULTS = TrainConfig()


def build(gpus=(), defaults: TrainConfig = DEFAULTS) -> Form:
    form = Form(gpus, defaults)
    for field in FIELDS:
        form.build(field)
    return form


@pytest.fixture(scope="module")
def form() -> Form:
    return build()


@pytest.fixture(scope="module")
def gpu_form() -> Form:
    return build(GPUS)


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_has_a_widget_with_its_title_help_and_default(form: Form, field: str):
    widget = form.widgets[field]
    declared = TrainConfig.model_fields[field]
    assert widget.label == declared.title
    assert widget.info == (NO_GPU if field == "devices" else declared.description)
    assert not set(widget.info) & set("*`"), "Gradio would take it for Markdown"
    assert widget.value == getattr(DEFAULTS, field)
    assert widget.elem_id == f"field-{field}"
    assert group(field) in ("main", "optimisation", "run", "lesson")


@pytest.mark.parametrize("field", FIELDS)
def test_each_widget_offers_what_the_field_allows(form: Form, field: str):
    widget = form.widgets[field]
    named, kind = choices(field), TrainConfig.model_fields[field].annotation
    if named:
        assert [value for _, value in widget.choices] == list(named)
    elif kind in (int, float):
        assert (widget.minimum, widget.maximum) == bounds(field)
        assert widget.minimum is not None
        assert widget.maximum is not None
        assert (widget.step == 1) == (kind is int)
    elif kind is bool:
        assert widget.get_block_name() == "checkbox"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_goes_through_the_form_unchanged(form: Form, preset: str):
    values = [form.shown(field, getattr(PRESETS[preset], field)) for field in FIELDS]
    assert form.read(values) == PRESETS[preset]
    assert preset_of(form.raw(values)) == preset


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value", [None, math.nan, math.inf, [], ["x"], {"a": 1}, "\0", -1e300, object()], ids=lambda value: repr(value)[:9]
)
def test_a_hostile_value_is_refused_with_its_field_and_no_other(form: Form, field: str, value):
    values = [form.shown(name, getattr(DEFAULTS, name)) for name in FIELDS]
    values[FIELDS.index(field)] = value
    if field == "devices" and value == []:  # a picker that was emptied
        assert form.read(values).devices == "auto"
        return
    with pytest.raises(ConfigError) as refused:
        form.read(values)
    assert set(refused.value.errors) == {field}


@pytest.mark.parametrize("field", [name for name in FIELDS if bounds(name) != (None, None)])
def test_numbers_beyond_the_bounds_are_refused(field: str):
    low, high = bounds(field)
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError) as refused:
            parse({field: value})
        assert field in refused.value.errors


def test_booleans_and_text_are_not_numbers():
    with pytest.raises(ConfigError) as refused:
        parse({"epochs": True, "lr": "0.1", "batch_size": 12.5})
    assert set(refused.value.errors) == {"epochs", "lr", "batch_size"}


def test_an_emptied_widget_is_called_empty():
    with pytest.raises(ConfigError) as refused:
        parse({"lr": None})
    assert refused.value.errors == {"lr": "is empty"}


def test_widgets_hand_over_what_the_browser_sent(form: Form):
    """Gradio's own checks would raise here, in a toast that names no field."""
    assert form.widgets["epochs"].preprocess(0) == 0
    assert form.widgets["parallel"].preprocess("nonsense") == "nonsense"
    assert form.widgets["dataset"].preprocess(["cifar10"]) == ["cifar10"]


def test_errors_stand_at_their_fields_and_touch_no_value(form: Form):
    marks = dict(zip(FIELDS, form.marked({"lr": "-1 must be greater than 0"}, {"parallel": "ddp"}), strict=True))
    assert marks["lr"]["info"] == "-1 must be greater than 0."
    assert "wrong" in marks["lr"]["elem_classes"]
    assert "wrong" not in marks["epochs"]["elem_classes"]
    assert marks["epochs"]["info"] == TrainConfig.model_fields["epochs"].description
    assert not any("value" in mark for mark in marks.values())


@pytest.mark.parametrize(("mode", "shown"), [("single", False), ("dp", False), ("ddp", True), (None, False)])
def test_processes_are_asked_for_in_ddp_only(form: Form, mode, shown: bool):
    marks = dict(zip(FIELDS, form.marked({}, {"parallel": mode}), strict=True))
    assert marks["processes"]["visible"] is shown


def test_the_picker_names_each_gpu_with_its_free_memory(gpu_form: Form):
    widget = gpu_form.widgets["devices"]
    assert [value for _, value in widget.choices] == ["auto", "cpu", "0", "1", "3"]
    assert widget.choices[4][0] == "GPU 3: NVIDIA H200, 103 GiB free"
    assert widget.multiselect
    assert widget.value == ["auto"]


@pytest.mark.parametrize("devices", ["auto", "cpu", "0", "0,3"])
def test_devices_go_through_the_picker_unchanged(gpu_form: Form, devices: str):
    values = [gpu_form.shown(field, getattr(DEFAULTS.changed(devices=devices), field)) for field in FIELDS]
    assert gpu_form.read(values).devices == devices


def test_gpus_that_are_not_here_become_auto(form: Form, gpu_form: Form):
    assert form.shown("devices", "0,1") == "auto"
    assert gpu_form.shown("devices", "7") == ["auto"]


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ([], ["auto"]),
        (["auto", "0"], ["0"]),
        (["0", "1"], ["0", "1"]),
        (["0", "1", "cpu"], ["cpu"]),
        (["cpu", "auto"], ["auto"]),
    ],
)
def test_the_newest_choice_of_devices_wins(chosen: list, left: list):
    assert one_kind(chosen) == left


def test_a_preset_leaves_place_and_name_alone():
    assert set(FIELDS) - set(recipe("smoke")) == {"parallel", "devices", "processes", "data_dir", "label"}
    assert recipe(CUSTOM) == recipe(None) == recipe(["smoke"]) == {}


def test_changed_settings_are_custom():
    assert preset_of({**TrainConfig().model_dump(), "lr": 0.5}) == CUSTOM
    assert preset_of({**TrainConfig().model_dump(), "label": "mine", "parallel": "ddp"}) == "tutorial"


def test_what_a_browser_remembered_is_taken_only_where_a_widget_can_show_it(form: Form):
    remembered = {"lr": -4, "epochs": "x", "dataset": "mnist", "nesterov": 1, "label": "a", "seed": None, "other": 1}
    assert form.fitting(remembered) == {"lr": -4, "label": "a", "seed": None}


def test_a_summary_names_fields_as_the_page_does():
    assert summary({"lr": "is empty", "config": "is not JSON"}) == "Learning rate: is empty; config: is not JSON"
    assert title("batch_size") == "Batch size"


class Pictures:
    num_train = 50_000


def means(config: TrainConfig, gpus=(), cores: int = 8) -> str:
    return explain(config, place(config, gpus, cores, False), Pictures, False)


@pytest.mark.parametrize(
    ("config", "gpus", "said"),
    [
        (TrainConfig(), (), "<b>128</b> pictures a step, all on one device. 391 steps an epoch, 3,910 in all"),
        (TrainConfig(max_steps=100), (), "stopped at 100"),
        (TrainConfig(), (), "One process on the CPU, 8 threads. Precision: fp32."),
        (TrainConfig(parallel="ddp"), (), "64 x 2 ranks = <b>128</b>"),
        (TrainConfig(parallel="ddp"), (), "2 ranks on the CPU over gloo, 4 threads each"),
        (TrainConfig(parallel="ddp", devices="0,3"), GPUS, "2 ranks on GPUs 0, 3 over nccl. Precision: bf16"),
        (TrainConfig(parallel="dp", batch_size=96), GPUS, "32 x 3 GPUs = <b>96</b>"),
        (TrainConfig(parallel="dp"), (), "class='note'>No GPU here"),
        (TrainConfig(lr=0.1, schedule="cosine", warmup=5), (), "Learning rate 0.1, up over 5 epochs, then down to 0"),
    ],
)
def test_the_page_says_what_settings_mean(config: TrainConfig, gpus, said: str):
    assert said in means(config, gpus)


def test_unknown_sizes_are_known_after_the_first_start():
    config = TrainConfig(dataset="images")
    assert "known after the first start" in explain(config, place(config, (), 2, False), None, False)


def test_the_command_names_the_runs_directory_unless_it_is_the_usual_one():
    config = TrainConfig(parallel="ddp")
    assert shell(config, ROOT / "runs") == f"{python()} -m trainer train --preset tutorial --parallel ddp"
    assert shell(config, Path("/a b/runs")).endswith(" --runs-dir '/a b/runs'")


def test_reasons_are_text_not_html():
    assert "<img" not in refusal(ConfigError({"label": "<img src=x onerror=alert(1)> is wrong"}))
