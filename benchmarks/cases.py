"""The cases of each table and the ratios that are taken between them. Rates are pictures a second."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks import loops


@dataclass(frozen=True)
class Case:
    """`ranks` processes share the cores; with `group` they are the ranks of one ddp group, else strangers."""

    loop: Callable[..., loops.Slice]
    options: dict[str, Any]
    ranks: int = 1
    group: bool = False


@dataclass(frozen=True)
class Table:
    cases: dict[str, Case]
    ratios: list[tuple[str, str]]  # (case, case that it is compared with)


B = 128
STEPS = {"count": 20 * B, "batch_size": B}
FAST_STEPS = {"count": 2 * 1024, "batch_size": 1024}


def _train() -> Table:
    def product(precision: str, log_every: int) -> Case:
        return Case(loops.product, {"model": "tutorial", "precision": precision, "log_every": log_every, **STEPS})

    def compute(precision: str) -> Case:
        return Case(loops.compute, {"model": "tutorial", "precision": precision, **STEPS})

    article, fp32, bf16 = "the article's loop", "fp32, every step logged", "bf16, every step logged"
    cases = {
        article: Case(loops.article_loop, STEPS),
        fp32: product("fp32", 1),
        "fp32, compute alone": compute("fp32"),
        bf16: product("bf16", 1),
        "bf16, hardly logged": product("bf16", 10_000),
        "bf16, compute alone": compute("bf16"),
    }
    ratios = [(fp32, article), (bf16, article), (fp32, "fp32, compute alone"), (bf16, "bf16, compute alone")]
    return Table(cases, [*ratios, (bf16, "bf16, hardly logged")])


def _data() -> Table:
    alone, workers, table = "PIL, in the process", "PIL, two workers", "one table of pixels"
    cases = {
        alone: Case(loops.pil_data, {**STEPS, "num_workers": 0}),
        workers: Case(loops.pil_data, {**STEPS, "num_workers": 2}),
        table: Case(loops.table_data, {"count": 400 * B, "batch_size": B}),
    }
    return Table(cases, [(table, alone), (table, workers)])


def _ddp() -> Table:
    """One process with all cores, a group of two ranks, and two processes that know nothing of each other."""
    cases: dict[str, Case] = {}
    ratios = []
    for model, precision in (("tutorial", "fp32"), ("tutorial", "bf16"), ("fast", "bf16")):
        steps = FAST_STEPS if model == "fast" else STEPS
        options = {"model": model, "precision": precision, "log_every": 10, **steps}
        half = {key: value // 2 for key, value in steps.items()}
        single, ddp, strangers = (f"{model} {precision}, {what}" for what in ("single", "ddp x2", "two strangers"))
        cases[single] = Case(loops.product, options)
        cases[ddp] = Case(loops.product, options | {"parallel": "ddp"}, ranks=2, group=True)
        cases[strangers] = Case(loops.product, options | half, ranks=2)
        ratios += [(ddp, single), (strangers, single), (ddp, strangers)]
    return Table(cases, ratios)


def _anatomy() -> Table:
    """What it costs to look inside each step."""
    cases: dict[str, Case] = {}
    ratios = []
    for model, ranks in (("tutorial", 1), ("tutorial", 2), ("fast", 2)):
        options = {"model": model, "precision": "auto", "log_every": 10, **(FAST_STEPS if model == "fast" else STEPS)}
        options |= {"parallel": "ddp"} if ranks > 1 else {}
        on, off = (f"{model} x{ranks}, {word}" for word in ("looking inside", "not looking"))
        cases[on] = Case(loops.product, options, ranks, group=ranks > 1)
        cases[off] = Case(loops.product, options | {"anatomy": False}, ranks, group=ranks > 1)
        ratios.append((on, off))
    return Table(cases, ratios)


TABLES = {"train": _train(), "data": _data(), "ddp": _ddp(), "anatomy": _anatomy()}
