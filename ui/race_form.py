"""What is asked before a race: modes, scaling, length, repeats. All other settings are those of the Train tab."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gradio as gr

from trainer.config import ConfigError
from trainer.devices import Gpu, cpu_cores
from trainer.race import Entrant, usual_entrants
from ui import widgets
from ui.form import parse, preset_of, title

STEPS, EPOCHS, ACCURACY = "steps", "epochs", "accuracy"
USUAL = {STEPS: 200, EPOCHS: 1, ACCURACY: 60}  # a length of each kind to start from
LENGTH_LABELS = {STEPS: "Steps a run", EPOCHS: "Epochs a run", ACCURACY: "Test accuracy (%)"}
# What each mode is raced with a second time: (words, changes of the settings `raw`).
LESSONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "late": ("The last rank 30 ms late", lambda raw: {"slow_ms": 30}),
    "buckets": ("Gradients in buckets of 1 MB", lambda raw: {"bucket_mb": 1}),
    "threads": ("One CPU thread in each process", lambda raw: {"threads": 1}),
    "seed": ("Another seed: what chance changes", lambda raw: {"seed": (int(raw["seed"]) + 1) % 2**31}),
    "batch": ("A quarter of the batch", lambda raw: {"batch_size": max(1, int(raw["batch_size"]) // 4)}),
}
_TITLES = {
    "modes": "Modes",
    "lesson": "Lesson",
    "scaling": "Scaling",
    "repeats": "Times",
    "until": "Until",
    "length": "Length",
    "max_steps": "Length",
    "network": "Network",
}


def offered(gpus: Sequence[Gpu]) -> list[Entrant]:
    """The modes that this machine can run."""
    counts = sorted({count for count in (2, 4, 8) if count < len(gpus)} | {len(gpus)}) if gpus else [2, 4]
    many = [Entrant(parallel, count) for count in counts if count > 1 for parallel in ("dp", "ddp")]
    many = many if gpus else [entrant for entrant in many if entrant.parallel == "ddp"]
    return [Entrant("single", 1), Entrant("ddp", 1), *many]


def not_offered(gpus: Sequence[Gpu]) -> str:
    """What this machine cannot run, and what its numbers mean."""
    if len(gpus) > 1:
        return ""
    if gpus:
        return "There is one GPU: dp and more ranks need two or more."
    cores = cpu_cores()
    return (
        f"No GPU here: dp needs two, so it is not offered. Ranks of ddp share this CPU's {cores} "
        f"core{'s' if cores != 1 else ''}: they show what the exchange costs, and make nothing faster."
    )


class RaceForm:
    """Builds the widgets inside the current Blocks."""

    def __init__(self, gpus: Sequence[Gpu]):
        usual = usual_entrants(gpus)
        self.modes = widgets.CheckboxGroup(
            [(entrant.name, entrant.word) for entrant in offered(gpus)],
            value=[entrant.word for entrant in usual],
            label="Modes",
            info=not_offered(gpus) or None,
            elem_id="race-modes",
        )
        self.lesson = widgets.Dropdown(
            [("None", ""), *((words, name) for name, (words, _) in LESSONS.items())],
            value="",
            label="Lesson",
            info="Race each mode twice: as it is, and with something done to it on purpose.",
            filterable=False,
            elem_id="race-lesson",
        )
        self.scaling = widgets.Radio(
            [("Strong", "strong"), ("Weak", "weak")],
            value="strong",
            label="Scaling",
            info="Strong: one batch, shared by all devices. Weak: the same batch for each device, and a learning rate "
            "that grows with their number.",
            elem_id="race-scaling",
        )
        self.kind = widgets.Radio(
            [("Steps", STEPS), ("Epochs", EPOCHS), ("Accuracy", ACCURACY)],
            value=STEPS,
            label="Until",
            elem_id="race-until",
        )
        with gr.Row(elem_classes=["fields"]):
            self.length = widgets.Number(
                value=USUAL[STEPS], label=LENGTH_LABELS[STEPS], minimum=0, min_width=80, elem_id="race-length"
            )
            self.repeats = widgets.Number(
                value=2, label="Times", minimum=1, step=1, min_width=80, elem_id="race-repeats"
            )

    @property
    def inputs(self) -> list[Any]:
        """The widgets in the order that `read` takes."""
        return [self.modes, self.lesson, self.scaling, self.kind, self.length, self.repeats]

    @staticmethod
    def on_kind(kind: Any) -> Any:
        """An update of the length, for another kind of it."""
        known = kind if isinstance(kind, str) and kind in USUAL else STEPS
        return gr.update(value=USUAL[known], label=LENGTH_LABELS[known])


def read(
    raw: Mapping[str, Any], modes: Any, lesson: Any, scaling: Any, kind: Any, length: Any, repeats: Any
) -> dict[str, Any]:
    """The arguments of `Supervisor.start_race` by name. `raw` is what the Train tab holds. Raises ConfigError."""
    errors: dict[str, str] = {}
    words = modes if isinstance(modes, list) else []
    try:
        entrants = [Entrant.parse(str(word)) for word in words]
    except ConfigError as error:
        errors |= error.errors
    if lesson and (not isinstance(lesson, str) or lesson not in LESSONS):
        errors["lesson"] = f"{str(lesson)[:40]!r} is not one of those offered"
    if len(words) < (1 if lesson else 2):
        errors["modes"] = "choose one or more" if lesson else "choose two or more, or a lesson"
    if type(repeats) is not int:
        errors["repeats"] = "must be a whole number" if repeats is not None else "is empty"
    if not isinstance(kind, str) or kind not in USUAL:
        errors["until"] = f"{str(kind)[:40]!r} must be steps, epochs or accuracy"
    field, value, problem = _length(kind, length)
    if problem:
        errors["length"] = problem
    if errors:
        raise ConfigError(errors)
    settings = {**raw, "max_steps": 0, "target_accuracy": 0.0, "parallel": "single", "processes": 0, field: value}
    try:
        base = parse(settings)
    except ConfigError as error:  # its own length is not a setting of the Train tab
        raise ConfigError({"length" if name == field else name: text for name, text in error.errors.items()}) from error
    if lesson:  # each mode right before itself with the lesson, so that the two run near each other in time
        changes = tuple(LESSONS[lesson][1](base.model_dump()).items())
        entrants = [each for mode in entrants for each in (mode, replace(mode, changes=changes))]
    return {"base": base, "entrants": entrants, "scaling": scaling, "repeats": repeats}


def _length(kind: Any, length: Any) -> tuple[str, Any, str]:
    """(field, value, what is wrong)."""
    if length is None:
        return "", None, "is empty"
    if type(length) not in (int, float):
        return "", None, "must be a number"
    if kind == ACCURACY:
        is_share = 0 < length <= 100
        return "target_accuracy", length / 100, "" if is_share else f"{length:g} must be above 0 and at most 100 %"
    whole = int(length) if length == length and abs(length) < 2**53 else 0
    if whole != length or whole < 1:
        return "", None, f"{length:g} must be a whole number above 0"
    return ("max_steps" if kind == STEPS else "epochs"), whole, ""


def in_words(error: ConfigError) -> str:
    """All problems in one line, the fields by the names they have on the page."""
    said = []
    for field, text in error.errors.items():
        where = _TITLES.get(field) or f"{title(field)} on the Train tab"
        said.append(f"{where}: {text}")
    return "; ".join(said)


def settings_note(raw: Mapping[str, Any]) -> str:
    """Which settings a race would take over."""
    try:
        config = parse({**raw, "parallel": "single", "processes": 0})
    except ConfigError as error:
        return f"The Train tab has settings to be fixed first: {in_words(error)}."
    name = preset_of(raw)
    kind = f"preset {name}" if name != "custom" else "your own settings"
    return (
        f"All else as on the Train tab: {kind}, {config.model} on {config.dataset}, batch {config.batch_size:,}, "
        f"lr {config.lr:g}, seed {config.seed}."
    )
