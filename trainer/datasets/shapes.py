"""Generated pictures of ten shapes, for a first run without any download. Imports no torch.

The same bytes on every machine: numpy's PCG64 and nothing but + - * / on float32, which IEEE 754 rounds alike
everywhere (no sin, exp or normal()).
"""

from collections.abc import Callable

import numpy as np

from trainer.datasets.store import Arrays, Progress, Sizes, Source

VERSION = 1  # part of the cache's name: raise it when the pictures change
SEED = 20_240_601
SIZES = Sizes(num_train=8_000, num_test=2_000, num_classes=10)
SIDE = 32

Field = np.ndarray  # (n, 32, 32): coordinates, or distances in pixels, negative inside


def source() -> Source:
    return Source(f"shapes-{VERSION}", build)


def build(progress: Progress = lambda _text: None) -> Arrays:
    """8,000 training and 2,000 test pictures; label i % 10, so that any stretch of them is balanced."""
    rng = np.random.Generator(np.random.PCG64(SEED))
    total = SIZES.num_train + SIZES.num_test
    pictures = np.empty((total, SIDE, SIDE, 3), np.uint8)
    for label, outline in enumerate(CLASSES.values()):
        progress("Drawing 10,000 shapes")
        pictures[label :: len(CLASSES)] = _draw(rng, outline, total // len(CLASSES))
    labels = np.arange(total, dtype=np.int64) % len(CLASSES)
    cut = SIZES.num_train
    return Arrays(
        classes=tuple(CLASSES),
        train_images=pictures[:cut],
        train_labels=labels[:cut],
        test_images=pictures[cut:],
        test_labels=labels[cut:],
        notes=("The pictures are generated: ten shapes in random colours, places, sizes and noise.",),
    )


def _draw(rng: np.random.Generator, outline: Callable[[Field, Field, Field], Field], count: int) -> np.ndarray:
    def random(*shape: int) -> np.ndarray:
        return rng.random((count, *shape), np.float32)

    def uniform(low: float, high: float) -> Field:
        return low + (high - low) * random(1, 1)

    radius = uniform(6, 12)
    x, y = _coordinates(uniform(-1, 1) * (15 - radius), uniform(-1, 1) * (15 - radius), uniform(-0.13, 0.13))
    shape = _coverage(outline(x, y, radius))
    # A stray bar somewhere behind the shape, so that not every edge belongs to it.
    bar_x, bar_y = _coordinates(uniform(-14, 14), uniform(-14, 14), uniform(-1, 1))
    bar = _coverage(_box(bar_x, bar_y, uniform(5, 14), uniform(0.4, 1.4))) * uniform(0, 0.8)

    back, front, stray = (random(1, 1, 3) for _ in range(3))
    # Light on dark: with both, a small network needs ten epochs instead of three.
    back = back * uniform(0.2, 0.6)[..., None]
    front = 1 - front * uniform(0.2, 0.6)[..., None]
    slope = (random(1, 1, 3) - 0.5) * x[..., None] / SIDE
    picture = back + slope
    picture = picture + (stray - picture) * bar[..., None]
    picture = picture + (front - picture) * shape[..., None]
    grain = random(SIDE, SIDE, 3) - random(SIDE, SIDE, 3)  # triangular, -1 to 1
    picture = picture + grain * uniform(0.02, 0.25)[..., None]
    return (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)


def _coordinates(shift_x: Field, shift_y: Field, turn: Field) -> tuple[Field, Field]:
    """Pixel coordinates about a shifted centre, turned by 2 atan(turn): -0.13 to 0.13 is 15 degrees either way."""
    pixels = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2
    x, y = pixels[None, None, :] - shift_x, pixels[None, :, None] - shift_y
    cosine, sine = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
    return cosine * x + sine * y, cosine * y - sine * x


def _coverage(distance: Field) -> Field:
    """How much of each pixel lies inside: a soft edge one pixel wide."""
    return np.clip(0.5 - distance, 0, 1)


def _box(x: Field, y: Field, half_width: Field, half_height: Field) -> Field:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def _circle(x: Field, y: Field, r: Field) -> Field:
    return np.sqrt(x * x + y * y) - r  # sqrt is exactly rounded, too


def _ring(x: Field, y: Field, r: Field) -> Field:
    return np.abs(_circle(x, y, r * 0.78)) - r * 0.22


def _square(x: Field, y: Field, r: Field) -> Field:
    return _box(x, y, r * 0.88, r * 0.88)


def _frame(x: Field, y: Field, r: Field) -> Field:
    return np.abs(_box(x, y, r * 0.7, r * 0.7)) - r * 0.2


def _triangle(x: Field, y: Field, r: Field) -> Field:
    # Upright, sides of slope 2 (length of the normal: sqrt 5), flat at the bottom.
    sides = (2 * np.abs(x) - (y + r)) / 2.23606797749979
    return np.maximum(sides, y - r * 0.8)


def _plus(x: Field, y: Field, r: Field) -> Field:
    return np.minimum(_box(x, y, r, r * 0.28), _box(x, y, r * 0.28, r))


def _cross(x: Field, y: Field, r: Field) -> Field:
    half = 0.7071067811865476
    return _plus((x + y) * half, (y - x) * half, r)


def _stripes(along: Field, r: Field) -> Field:
    """Bands across `along`: distance to the nearest band of a fifth of the diameter."""
    period = r * 0.8
    phase = along / period
    return (np.abs(phase - np.floor(phase + 0.5)) - 0.25) * period


def _horizontal(x: Field, y: Field, r: Field) -> Field:
    return np.maximum(_box(x, y, r, r), _stripes(y, r))


def _vertical(x: Field, y: Field, r: Field) -> Field:
    return np.maximum(_box(x, y, r, r), _stripes(x, r))


def _checker(x: Field, y: Field, r: Field) -> Field:
    across, down = _stripes(x, r), _stripes(y, r)
    same = np.minimum(np.maximum(across, down), np.maximum(-across, -down))
    return np.maximum(_box(x, y, r, r), same)


CLASSES: dict[str, Callable[[Field, Field, Field], Field]] = {
    "circle": _circle,
    "ring": _ring,
    "square": _square,
    "frame": _frame,
    "triangle": _triangle,
    "plus": _plus,
    "cross": _cross,
    "horizontal stripes": _horizontal,
    "vertical stripes": _vertical,
    "checker": _checker,
}
