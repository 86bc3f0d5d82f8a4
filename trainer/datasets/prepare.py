"""The way to the pictures of a run: from `dataset` and `data_dir` to arrays in the cache. Imports no torch.

Call `prepare` once, in the process that starts the ranks; each rank opens the result with `open_prepared(path)`.
"""

from trainer.config import TrainConfig
from trainer.datasets import cifar10, images, shapes
from trainer.datasets.store import DataError, Prepared, Progress, Sizes, Source, obtain, open_prepared
from trainer.datasets.store import cached as _cached

__all__ = ["DataError", "Prepared", "Progress", "Sizes", "available", "cached", "open_prepared", "peek", "prepare"]


def prepare(config: TrainConfig, progress: Progress) -> Prepared:
    """The pictures for `config`, downloaded, unpacked or generated once and from then on taken from the cache.

    `progress` is told in words what takes time, several times a second and also when that has not changed, so that it
    can end the work: what it raises leaves nothing half-made. Raises DataError.
    """
    return obtain(_source(config, progress), progress)


def cached(config: TrainConfig) -> Prepared | None:
    """The pictures for `config` if they were prepared before; quick."""
    try:
        return _cached(_source(config))
    except DataError:
        return None


def peek(config: TrainConfig) -> Sizes | None:
    """How many pictures and classes, as far as that is known without reading them; quick, no network."""
    match config.dataset:
        case "cifar10":
            return cifar10.SIZES
        case "shapes":
            return shapes.SIZES
    found = cached(config)
    return found.sizes if found else None


def available(config: TrainConfig) -> bool:
    """Whether the pictures can be had without a network. Looks at names only: damage shows in `prepare`."""
    match config.dataset:
        case "cifar10":
            return cifar10.on_disk(config.data_dir) or cached(config) is not None
        case "images":
            return images.on_disk(config.data_dir)
    return True


def _source(config: TrainConfig, progress: Progress = lambda _text: None) -> Source:
    match config.dataset:
        case "cifar10":
            return cifar10.source(config.data_dir)
        case "images":
            return images.source(config.data_dir, progress)
    return shapes.source()
