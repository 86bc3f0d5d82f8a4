"""What is measured, as functions that do one slice of work a call and return how many pictures it took."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks import article
from trainer.allocator import keep_freed_memory
from trainer.augment import plan_epoch
from trainer.config import TrainConfig
from trainer.data import TrainSet
from trainer.datasets.store import Prepared
from trainer.devices import cpu_cores
from trainer.loop import train_epoch
from trainer.models import build_model
from trainer.optimizer import build_optimizer
from trainer.parallel import Worker
from trainer.presets import PRESETS
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.session import Session, begin, choose_precision

CPU = torch.device("cpu")
Slice = Callable[[], int]


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise in the shape of CIFAR-10: what is on a picture does not change the speed."""
    draw = np.random.default_rng(0)
    return draw.integers(0, 256, (count, 32, 32, 3), np.uint8), draw.integers(0, 10, count)


def settings(model: str, **values: object) -> TrainConfig:
    """A preset's settings with a rate so low that noise never diverges, for epochs without end."""
    return PRESETS[model].changed(dataset="images", epochs=10_000, lr=1e-3, **values)


def session(config: TrainConfig, rank: int, world_size: int, count: int) -> Session:
    """A run of the product on `count` pictures, in a directory of its own."""
    keep_freed_memory()
    run = Run.create(Path(tempfile.mkdtemp(prefix="bench-")), config)
    prepared = Prepared(tuple("abcdefghij"), *pictures(count), *pictures(100))
    return begin(config, Worker(rank, world_size, CPU), run, prepared, RankRecord(run, rank))


def product(rank: int, world_size: int, *, model: str, count: int, **values: object) -> Slice:
    """The product's own loop, whole: data, step, telemetry. One epoch over `count` pictures of all ranks a call."""
    made = session(settings(model, **values), rank, world_size, count)

    def epoch() -> int:
        outcome = train_epoch(made)
        assert outcome is None, outcome
        return count // world_size

    return epoch


def compute(rank: int, world_size: int, *, model: str, count: int, batch_size: int, precision: str) -> Slice:
    """Forward, backward and optimizer on one batch that never changes: the bound for everything around it."""
    keep_freed_memory()
    config = settings(model, batch_size=batch_size, precision=precision)
    net = build_model(config.model, 10).train()
    optimizer = build_optimizer(net, config)
    autocast = choose_precision(precision, CPU)
    images = torch.randn(batch_size, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch_size,))

    def steps() -> int:
        for _ in range(count // batch_size):
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                logits = net(images)
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(logits.float(), labels).backward()
            optimizer.step()
        return count // batch_size * batch_size

    return steps


def article_loop(rank: int, world_size: int, *, count: int, batch_size: int) -> Slice:
    return article.article_loop(*pictures(count), batch_size)


def table_data(rank: int, world_size: int, *, count: int, batch_size: int) -> Slice:
    """The product's data path alone: crop, flip, normalise."""
    images, labels = (torch.from_numpy(array) for array in pictures(count))
    half = {"mean": [0.5] * 3, "std": [0.5] * 3}
    train_set = TrainSet(images, labels, half, "crop_flip", CPU)
    epoch = 0

    def once() -> int:
        nonlocal epoch
        epoch += 1
        plan = plan_epoch(count, 0, epoch, "crop_flip")
        return sum(len(batch.images) for batch in train_set.batches(plan, batch_size))

    return once


def pil_data(rank: int, world_size: int, *, count: int, batch_size: int, num_workers: int) -> Slice:
    """The article's data path alone."""
    batches = article.loader(*pictures(count), batch_size, num_workers)
    return lambda: sum(len(images) for images, _ in batches)


def use_cores(ranks: int) -> None:
    torch.set_num_threads(max(1, cpu_cores() // ranks))
