"""A prediction as HTML: the picture that the network saw, a bar for every class, examples. All words are escaped."""

import base64
import io
from html import escape
from typing import Any

import numpy as np
from PIL import Image

from ui.predictors import Examples

# Runs once; the buttons come and go with the value. Python finds the event by its quoted name.
GALLERY_JS = """
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-index]');
  if (button) trigger('choose', { index: Number(button.dataset.index) });
});
"""


def gallery(found: Examples) -> str:
    """Buttons with example pictures; without pictures, in words what the network knows."""
    if not found.names:
        return ""
    if not found.pictures:
        return f'<p class="examples-title">It tells apart: {escape(", ".join(found.names))}.</p>'
    title = "Or a test picture of its data set" if found.is_own else "Or a generated picture"
    buttons = "".join(
        f'<button type="button" data-index="{index}"><img src="{_data_url(picture)}" alt="">'
        f"<span>{escape(name)}</span></button>"
        for index, (picture, name) in enumerate(found.items())
    )
    return f'<p class="examples-title">{title}</p><div class="examples-grid">{buttons}</div>'


def sentence(title: str, text: str, is_problem: bool = False) -> str:
    """What to do, or what is wrong, where the answer would be."""
    kind = "predict-problem" if is_problem else "predict-empty"
    return f'<div class="{kind}" role="status"><strong>{escape(title)}</strong><span>{escape(text)}</span></div>'


def answer(seen: np.ndarray, found: dict[str, Any], run_name: str, wished: Any) -> str:
    """`found` is what `Answers.predict` returns; `wished` is the checkpoint that was asked for."""
    source = [run_name]
    if found["checkpoint"]:
        is_other = wished == "best" and found["checkpoint"] != "best"
        why = " (there is no best one before the first test)" if is_other else ""
        source.append(f"{found['checkpoint']} checkpoint{why}")
    source.append(f"step {found['step']:,}")
    views = "six views, " if found["tta"] else ""
    ranked = sorted(found["probabilities"].items(), key=lambda item: -item[1])
    return (
        '<div class="predict-answer">'
        '<div class="predict-top">'
        f'<figure><img class="seen" src="{_data_url(seen)}" alt="The picture in 32 by 32 pixels">'
        "<figcaption>What the network saw</figcaption></figure>"
        '<div role="status">'
        f'<p class="predict-label">{escape(found["label"])}</p>'
        f'<p class="predict-share">{_percent(found["probability"])}</p>'
        f'<p class="predict-source">{escape(", ".join(source))}<br>'
        f"{views}{found['milliseconds']:.1f} ms on one CPU thread</p>"
        "</div></div>"
        f'<ol class="predict-bars" aria-label="All classes">{"".join(_bar(*item) for item in ranked)}</ol>'
        "</div>"
    )


def _bar(name: str, probability: float) -> str:
    return (
        f'<li><span class="name">{escape(name)}</span>'
        f'<span class="bar"><i style="width:{100 * probability:.2f}%"></i></span>'
        f'<span class="share">{_percent(probability)}</span></li>'
    )


def _percent(probability: float) -> str:
    return f"{100 * probability:.1f} %" if probability >= 0.0005 else "< 0.1 %"


def _data_url(picture: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
