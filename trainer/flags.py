"""The settings as flags of the command line: one for each field of TrainConfig, under its name. Imports no torch."""

from contextlib import suppress
from dataclasses import make_dataclass
from typing import Annotated, Any

import tyro

from trainer.config import Group, TrainConfig, choices, group
from trainer.presets import PRESETS


def preset_of(argv: list[str]) -> str:
    """The preset gives the defaults of all other flags, so it is looked up before they are read."""
    for index, word in enumerate(argv):
        name = word.removeprefix("--preset=") if word.startswith("--preset=") else None
        if word == "--preset" and index + 1 < len(argv):
            name = argv[index + 1]
        if name in PRESETS:
            return name
    return "tutorial"


def flags(part: Group, preset: TrainConfig) -> Any:
    """An object whose class declares the flags of one part of the settings, for tyro to fill.

    All but the switches are taken as words: `settings` judges every field at once, where tyro would stop at the first.
    """
    fields: list[Any] = []
    for name, field in TrainConfig.model_fields.items():
        if group(name) != part:
            continue
        value, kind = getattr(preset, name), field.annotation
        if kind is bool:
            fields.append((name, Annotated[bool, tyro.conf.arg(help=field.description)], value))
            continue
        metavar = "{" + ",".join(choices(name)) + "}" if choices(name) else _METAVARS[kind]
        fields.append((name, Annotated[str, tyro.conf.arg(help=field.description, metavar=metavar)], str(value)))
    return make_dataclass(part, fields, frozen=True)()


_METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", str: "TEXT"}


def settings(*parts: Any) -> TrainConfig:
    """What the flags say. Raises ConfigError with all problems at once."""
    given = {name: value for part in parts for name, value in vars(part).items()}
    return TrainConfig.parse({name: value_of(name, value) for name, value in given.items()})


def value_of(name: str, word: Any) -> Any:
    """A word in the type of its field; one that is none of it stays as it is, for TrainConfig to refuse."""
    kind = TrainConfig.model_fields[name].annotation
    if kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    if kind is bool and isinstance(word, str):
        return {"true": True, "false": False}.get(word.lower(), word)
    return word
