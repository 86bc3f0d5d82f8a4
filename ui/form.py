"""TrainConfig <-> widgets, generated from the fields: title -> label, description -> info, bounds, choices.

Values come back through TrainConfig.parse only. What is wrong is said at the field, and what was typed stays.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import annotated_types
import gradio as gr

from trainer.config import ConfigError, TrainConfig, choices
from trainer.devices import Gpu, list_gpus
from trainer.presets import PRESETS
from ui import widgets
from ui.run_facts import sentence

FIELDS = tuple(TrainConfig.model_fields)
# The recipe is what a preset sets. Where it runs and what it is called are the user's.
PLACE = ("parallel", "devices", "processes", "data_dir", "label")
RECIPE = tuple(name for name in FIELDS if name not in PLACE)
CUSTOM = "custom"
NO_GPU = "No GPU found: training runs on the CPU."

_CLASSES = ("field",)
_CLASSES_WRONG = ("field", "wrong")


def title(field: str) -> str:
    """The words for a field on the page; the name itself for a key that is none."""
    known = TrainConfig.model_fields.get(field)
    return (known.title if known else None) or field


def bounds(field: str) -> tuple[float | None, float | None]:
    """Smallest and largest value; an excluded bound is given as it is, the validator knows better."""
    low = high = None
    for rule in TrainConfig.model_fields[field].metadata:
        if isinstance(rule, annotated_types.Ge | annotated_types.Gt):
            low = rule.ge if isinstance(rule, annotated_types.Ge) else rule.gt
        if isinstance(rule, annotated_types.Le | annotated_types.Lt):
            high = rule.le if isinstance(rule, annotated_types.Le) else rule.lt
    return low, high  # type: ignore[return-value]


class Form:
    """The widgets of all fields on one page. The machine's GPUs and the data path are known when it is built."""

    def __init__(self, gpus: Sequence[Gpu], defaults: TrainConfig):
        self.gpus = list(gpus)
        self.defaults = defaults
        self.widgets: dict[str, Any] = {}

    def build(self, field: str, **options: Any) -> Any:
        """Make the widget of `field` where it stands; `options` go to the component."""
        make = self._devices if field == "devices" else _widget
        widget = make(
            field,
            label=title(field),
            info=self._help(field),
            value=self.shown(field, getattr(self.defaults, field)),
            elem_id=f"field-{field}",
            elem_classes=list(_CLASSES),
            **options,
        )
        self.widgets[field] = widget
        return widget

    def look_at_gpus(self) -> None:
        """How much of their memory is free now. Which GPUs there are is settled when the page is built."""
        now = {gpu.uuid: gpu for gpu in list_gpus()} if self.gpus else {}
        self.gpus = [now.get(gpu.uuid, gpu) for gpu in self.gpus]

    @property
    def inputs(self) -> list[Any]:
        """The widgets in the order of the fields, as every handler takes them."""
        return [self.widgets[field] for field in FIELDS]

    def raw(self, values: Sequence[Any]) -> dict[str, Any]:
        """What the widgets held, by field, unchecked. The picker's list of GPUs becomes the text of `devices`."""
        found = dict(zip(FIELDS, values, strict=True))
        if isinstance(found["devices"], list):
            found["devices"] = ",".join(map(str, one_kind(found["devices"])))
        return found

    def read(self, values: Sequence[Any]) -> TrainConfig:
        """Raises ConfigError."""
        return parse(self.raw(values))

    def shown(self, field: str, value: Any) -> Any:
        """A field's value as its widget takes it. GPUs that this machine does not have become auto."""
        if field != "devices":
            return value
        known = {"auto", "cpu", *(str(gpu.index) for gpu in self.gpus)}
        parts = [part for part in str(value).split(",") if part in known]
        return (parts or ["auto"]) if self.gpus else (parts or ["auto"])[0]

    def fitting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What of `values`, which a browser remembered, the widgets can show."""
        return {field: values[field] for field in FIELDS if field in values and _fits(field, values[field])}

    def marked(self, errors: Mapping[str, str], values: Mapping[str, Any]) -> list[Any]:
        """Updates that put each error at its field and the help back where there is none. No value is touched."""
        updates = []
        for field in FIELDS:
            wrong = field in errors
            update: dict[str, Any] = {
                "info": sentence(errors[field]).removesuffix(".") + "." if wrong else self._help(field),
                "elem_classes": list(_CLASSES_WRONG if wrong else _CLASSES),
            }
            if field == "devices" and self.gpus:
                update["choices"] = self._device_choices()
            if field == "processes":
                update["visible"] = values.get("parallel") == "ddp"
            updates.append(gr.update(**update))
        return updates

    def _help(self, field: str) -> str:
        if field == "devices":
            return "auto: every GPU that the mode can use." if self.gpus else NO_GPU
        return TrainConfig.model_fields[field].description or ""

    def _devices(self, field: str, **options: Any) -> Any:
        make = widgets.Dropdown if self.gpus else widgets.Radio
        return make(self._device_choices(), **({"multiselect": True} if self.gpus else {}), **options)

    def _device_choices(self) -> list[tuple[str, str]]:
        found = [
            (f"GPU {gpu.index}: {gpu.name}, {gpu.memory_free / 2**30:.0f} GiB free", str(gpu.index))
            for gpu in self.gpus
        ]
        return [("auto", "auto"), ("CPU", "cpu"), *found]


def _widget(field: str, **options: Any) -> Any:
    kind = TrainConfig.model_fields[field].annotation
    named = choices(field)
    if named:
        make = widgets.Radio if len(named) <= 3 and field == "parallel" else widgets.Dropdown
        return make(list(named), **({"filterable": False} if make is widgets.Dropdown else {}), **options)
    if kind is bool:
        return widgets.Checkbox(**options)
    if kind in (int, float):
        low, high = bounds(field)
        step = 1 if kind is int else _step(options["value"])
        return widgets.Number(minimum=low, maximum=high, step=step, **options)
    return widgets.Textbox(lines=1, max_lines=1, **options)


def _step(value: float) -> float:
    """What an arrow key adds to a number with a fraction: a tenth of its own size."""
    return 10.0 ** (math.floor(math.log10(value)) - 1) if value > 0 else 0.1


def parse(values: Mapping[str, Any]) -> TrainConfig:
    """TrainConfig.parse, with an emptied widget called by that name. Raises ConfigError."""
    try:
        return TrainConfig.parse(values)
    except ConfigError as error:
        empty = {field: "is empty" for field in error.errors if field in values and values[field] is None}
        raise ConfigError({**error.errors, **empty}) from None


def one_kind(chosen: list[Any]) -> list[Any]:
    """auto, the CPU and a list of GPUs exclude each other: the newest choice of the picker wins."""
    if not chosen or chosen[-1] in ("auto", "cpu"):
        return chosen[-1:] or ["auto"]
    return [part for part in chosen if part not in ("auto", "cpu")]


def preset_of(values: Mapping[str, Any]) -> str:
    """The preset whose recipe these values are, or `custom`."""
    for name, preset in PRESETS.items():
        if all(values.get(field) == getattr(preset, field) for field in RECIPE):
            return name
    return CUSTOM


def recipe(preset: object) -> dict[str, Any]:
    """The values that choosing a preset puts into the form; {} for `custom` and anything unknown."""
    known = PRESETS.get(preset) if isinstance(preset, str) else None
    return {field: getattr(known, field) for field in RECIPE} if known else {}


def summary(errors: Mapping[str, str]) -> str:
    """All errors in one line of text."""
    return "; ".join(f"{title(field)}: {text}" for field, text in errors.items())


def _fits(field: str, value: Any) -> bool:
    """Whether a widget can show a remembered value: browser storage may hold anything."""
    named = choices(field)
    kind = TrainConfig.model_fields[field].annotation
    if named:
        return value in named
    if kind is bool:
        return isinstance(value, bool)
    if kind in (int, float):
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return isinstance(value, str)
