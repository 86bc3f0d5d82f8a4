"""Gradio's input components, handing over what the browser sent as it is.

Gradio checks some inputs before our functions see them and tells the user in a toast that names no field, or not at
all (NaN passes a Number with bounds). Here every value reaches TrainConfig.parse, which words the refusal at the field.
"""

from abc import ABCMeta
from typing import Any

import gradio as gr
from gradio.component_meta import ComponentMeta, updateable


class Quiet(ComponentMeta):
    """For subclasses of components. Gradio's own metaclass writes a .pyi file beside each module that has one."""

    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]):
        if "__init__" in attributes:
            attributes["__init__"] = updateable(attributes["__init__"])
        return ABCMeta.__new__(cls, name, bases, attributes)


def _unchecked(component: type) -> Any:
    """A subclass of `component` with the same widget in the browser and no opinion about its value."""
    attributes = {
        "__module__": __name__,
        "is_template": True,  # the browser draws the parent
        "preprocess": lambda self, payload: payload,
    }
    return Quiet(component.__name__, (component,), attributes)


Number = _unchecked(gr.Number)
Textbox = _unchecked(gr.Textbox)
Checkbox = _unchecked(gr.Checkbox)
Radio = _unchecked(gr.Radio)
Dropdown = _unchecked(gr.Dropdown)
CheckboxGroup = _unchecked(gr.CheckboxGroup)
