"""What a calibration times, in the process of one rank: the step without its exchange, and the exchange alone.

Between two steps the ranks meet as they do in a run, so the wait for the slowest, and for a core that others hold, is
in what is measured.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median, pstdev
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from trainer.augment import plan_epoch
from trainer.config import TrainConfig
from trainer.data import Batch, TrainSet
from trainer.lookahead import Lookahead
from trainer.loop import LONGEST_APART
from trainer.models import build_model
from trainer.optimizer import build_optimizer
from trainer.parallel import Worker, reduce_sum
from trainer.session import ARTICLE_NORMALISATION, choose_precision

NUM_CLASSES = 10
FEWEST, MOST = 5, 200  # repeats of one kind
LONGEST = 20.0  # seconds after which fewer are enough
WARM_UP = 1  # repeats that do not count


def time_step(config: TrainConfig, worker: Worker, batch_size: int, seconds: float) -> dict[str, Any]:
    """Steps of the product on random pictures, `batch_size` a rank, about `seconds` long, gradients not exchanged.

    Returns {seconds: median of one step, spread: standard deviation over the median}, the same kind on every rank.
    """
    step = _training_step(config, worker, batch_size)
    device = worker.device
    block = 1 if device.type == "cpu" else min(config.log_every, LONGEST_APART)  # steps between two meetings

    def one() -> None:
        for _ in range(block):
            sums = step()
        reduce_sum(sums, worker)

    taken = [each / block for each in _repeat(one, worker, seconds)]
    middle = median(taken)
    kept = sorted(taken)[: max(1, round(0.9 * len(taken)))]  # one hiccup is no spread
    return {"seconds": middle, "spread": pstdev(kept) / middle}


def time_exchange(worker: Worker, size: int, seconds: float) -> dict[str, Any]:
    """Average `size` bytes of gradients in fp32 over the ranks as DDP does: scale into a bucket, all-reduce."""
    gradients = torch.ones(max(1, size // 4), device=worker.device)
    bucket = torch.empty_like(gradients)

    def one() -> None:
        torch.mul(gradients, 1 / worker.world_size, out=bucket)
        dist.all_reduce(bucket)
        if worker.device.type == "cuda":
            torch.cuda.synchronize(worker.device)

    return {"seconds": median(_repeat(one, worker, seconds))}


def gradient_bytes(config: TrainConfig) -> int:
    """What a step exchanges: a float32 for each weight that is trained."""
    model = build_model(config.model, NUM_CLASSES)
    return sum(4 * parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def precision_name(config: TrainConfig, device: torch.device) -> str:
    """As the `start` event has it."""
    return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[choose_precision(config.precision, device)]


def _repeat(one: Callable[[], None], worker: Worker, seconds: float) -> list[float]:
    """Seconds of each call, without the first ones; for about `seconds`, by the clock of rank 0."""
    taken: list[float] = []
    begun = time.perf_counter()
    enough = False
    while not enough:
        flag = torch.zeros(1, dtype=torch.float64, device=worker.device)
        passed = time.perf_counter() - begun
        if worker.is_main and len(taken) >= (FEWEST if passed < LONGEST else WARM_UP + 1):
            flag += float(passed >= seconds or len(taken) >= MOST)
        enough = bool(reduce_sum(flag, worker)[0])
        if not enough:
            before = time.perf_counter()
            one()
            taken.append(time.perf_counter() - before)
    return taken[WARM_UP:]


def _training_step(config: TrainConfig, worker: Worker, batch_size: int) -> Callable[[], Tensor]:
    """A function that makes one step as trainer/loop.py does and returns the sums that the ranks would share."""
    torch.manual_seed(0)
    device = worker.device
    model = build_model(config.model, NUM_CLASSES).to(device).train()
    if config.compile and device.type == "cuda":
        model.compile()
    optimizer = build_optimizer(model, config)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # noise teaches nothing, and could lead to numbers that take longer
    autocast = choose_precision(config.precision, device)
    scaler = torch.amp.GradScaler(device.type, enabled=autocast == torch.float16)
    lookahead = Lookahead(model, config.lookahead, 10**9) if config.lookahead else None
    batches = _batches(config, device, batch_size)
    count = 0

    def step() -> Tensor:
        nonlocal count
        count += 1
        batch = next(batches)
        with torch.autocast(device.type, autocast) if autocast else nullcontext():
            logits = model(batch.images)
        losses = F.cross_entropy(logits.float(), batch.labels, reduction="none", label_smoothing=config.label_smoothing)
        loss_sum = (losses * batch.weight).sum()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss_sum / batch.global_size).backward()
        if config.grad_clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        elif count % config.log_every == 0:
            torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        scaler.step(optimizer)
        scaler.update()
        if lookahead:
            lookahead.after(count)
        with torch.no_grad():
            correct = ((logits.argmax(1) == batch.labels) * batch.weight).sum()
            return torch.stack([loss_sum.double(), correct.double(), batch.weight.sum().double()])

    return step


def _batches(config: TrainConfig, device: torch.device, batch_size: int) -> Iterator[Batch]:
    """Batches of random pictures without end, cut and shifted as those of a run."""
    count = max(4 * batch_size, 2_000) // batch_size * batch_size
    images = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8)
    train_set = TrainSet(images, torch.arange(count) % NUM_CLASSES, ARTICLE_NORMALISATION, config.augment, device)
    epoch = 0
    while True:
        yield from train_set.batches(plan_epoch(count, 0, epoch, config.augment), batch_size)
        epoch += 1
