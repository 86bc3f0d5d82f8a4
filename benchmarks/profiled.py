"""The parts of a step as the product notes them beside those that torch.profiler sees in the very same steps.

The profiler knows nothing of the product's clock: forward begins with DDP's own record, backward with autograd's first
function and ends with its last, exchange is what gloo's thread records.
"""

import statistics
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile

from benchmarks.loops import session, settings, use_cores
from trainer.anatomy import Moment, means, read_ranks
from trainer.loop import train_epoch

HEADER = ("network", "part", "noted", "profiler", "difference")
RANKS = 2
STEPS = {"tutorial": 40, "fast": 4}
BATCH = {"tutorial": 128, "fast": 1024}


def measure(repeats: int, progress) -> tuple[list[list[str]], dict]:
    """Rows of the table, and {network: [{part: [noted, profiler] in seconds}, one for each repeat]}."""
    rows, numbers = [], {}
    for model in STEPS:
        found = []
        for number in range(repeats):
            progress(f"profiled: {model}, {number + 1} of {repeats}")
            found.append(_once(model))
        numbers[model] = found
        for part in found[0]:
            noted, seen = (statistics.median(one[part][index] for one in found) for index in range(2))
            rows.append([model, part, f"{1000 * noted:.2f}", f"{1000 * seen:.2f}", f"{noted / seen - 1:+.1%}"])
    return rows, numbers


def _once(model: str) -> dict[str, tuple[float, float]]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        arguments = (model, Path(folder) / "rendezvous", theirs)
        ranks = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        found = ours.recv()
        for process in ranks:
            process.join(60)
    return found


def _rank(rank: int, model: str, rendezvous: Path, parent: Connection) -> None:
    use_cores(RANKS)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    config = settings(model, parallel="ddp", batch_size=BATCH[model], log_every=10, precision="auto")
    made = session(config, rank, RANKS, STEPS[model] * BATCH[model])
    train_epoch(made)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train_epoch(made)
    if rank == 0:
        seen = _seen([*profiler.events()])
        rows = read_ranks(made.run, 1)[:, -(STEPS[model] - 1) :]
        (mean,) = means(rows)
        at = rows[0, :, 1:]
        exposed = float((at[:, Moment.BACKWARD] - at[:, Moment.READY]).mean())
        noted = {
            "forward": mean["forward"],
            "backward": mean["backward"],
            "gradient exchange after backward": exposed,
            "gradient exchange in all": exposed + mean["hidden"],
            "optimizer": mean["optimizer"],
        }
        parent.send({part: (seconds, seen[part]) for part, seconds in noted.items()})
    dist.barrier()


def _seen(events: list) -> dict[str, float]:
    """Mean seconds of each part in the profiler's events; the first step is left out, as the product does."""

    def spans(*beginnings: str) -> np.ndarray:
        found = [e.time_range for e in events if e.name.startswith(beginnings)]
        return np.array(sorted((span.start, span.end) for span in found)) / 1e6

    forwards, functions, steps = (
        spans("DistributedDataParallel.forward"),
        spans("autograd::engine"),
        spans("Optimizer.step"),
    )
    reductions = spans("gloo:all_reduce")
    parts: dict[str, list[float]] = {}
    for begin, (step_begin, step_end) in list(zip(forwards[:, 0], steps, strict=True))[1:]:
        inside = functions[(functions[:, 0] >= begin) & (functions[:, 1] <= step_begin)]
        first, last = inside[:, 0].min(), inside[:, 1].max()
        travelling = reductions[(reductions[:, 0] >= first) & (reductions[:, 0] <= step_begin)]
        for part, seconds in {
            "forward": first - begin,
            "backward": last - first,
            "gradient exchange after backward": max(0.0, travelling[:, 1].max() - last),
            "gradient exchange in all": _union(travelling),
            "optimizer": step_end - step_begin,
        }.items():
            parts.setdefault(part, []).append(seconds)
    return {part: statistics.mean(seconds) for part, seconds in parts.items()}


def _union(spans: np.ndarray) -> float:
    total, until = 0.0, 0.0
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
