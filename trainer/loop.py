"""The training loop: one step, readable from top to bottom, the same in every parallel mode."""

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.anatomy import Moment
from trainer.augment import plan_epoch
from trainer.data import Batch
from trainer.outcome import Outcome
from trainer.parallel import check_same_weights, reduce_sum, share_buffers
from trainer.pulse import Phase
from trainer.session import Session, save

LONGEST_APART = 20  # steps on a GPU after which the ranks look at loss and stop at the latest


def lr_factor(step: int, total_steps: int, warmup_steps: float, schedule: str) -> float:
    """The share of `lr` in force for the step after `step` steps were made: a rise from 0, then the schedule.

    The fifths of `step` are those of Wide ResNets (arXiv:1605.07146): after 60, 120 and 160 of 200 epochs.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    match schedule:
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        case "triangular":
            return 1 - done
        case "step":
            return 0.2 ** sum(10 * step >= tenths * total_steps for tenths in (3, 6, 8))
    return 1.0


def train(session: Session) -> Outcome:
    """Train to the end of the run, or until it is asked to stop. Every rank returns the same outcome."""
    outcome = None
    if session.step and session.step % session.steps_per_epoch == 0:  # stopped between an epoch and its evaluation
        outcome = _end_epoch(session)
    while outcome is None and session.step < session.total_steps:
        outcome = train_epoch(session) or _end_epoch(session)
    _tell_anatomy(session, is_last=True)
    return outcome or Outcome("completed", session.step)


def train_epoch(session: Session) -> Outcome | None:
    """The rest of the current epoch. None if it was done to its end."""
    config, worker, optimizer, scaler = session.config, session.worker, session.optimizer, session.scaler
    clock = session.clock
    device = worker.device
    epoch, first = divmod(session.step, session.steps_per_epoch)
    epoch_end = min((epoch + 1) * session.steps_per_epoch, session.total_steps)
    plan = plan_epoch(len(session.train_set), config.seed, epoch, config.augment)
    batches = session.train_set.batches(plan, config.batch_size, first, worker.rank, worker.world_size)
    if config.slow_ms and worker.rank == worker.world_size - 1:
        batches = _late(batches, config.slow_ms / 1000)
    # Reading a number off a GPU stalls it, so there the ranks meet now and then; on a CPU it costs nothing.
    meet_every = 1 if device.type == "cpu" else min(config.log_every, LONGEST_APART)
    torch.manual_seed(hash((config.seed, epoch, worker.rank)) % 2**63)
    session.net.train()
    sums = torch.zeros(4, dtype=torch.float64, device=device)  # loss, correct, pictures, asked to stop
    meter = Meter()

    clock.begin()
    for batch in batches:
        clock.at(Moment.DATA)
        warmup_steps = config.warmup * session.steps_per_epoch
        lr = config.lr * lr_factor(session.step, session.total_steps, warmup_steps, config.schedule)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        session.step += 1
        is_last = session.step == epoch_end
        is_logged = session.step % config.log_every == 0 or session.step in (1, session.total_steps) or is_last

        with torch.autocast(device.type, session.autocast) if session.autocast else nullcontext():
            logits = session.net(batch.images)
        losses = F.cross_entropy(
            logits.to(batch.weight.dtype) if session.autocast else logits,
            batch.labels,
            reduction="none",
            label_smoothing=config.label_smoothing,
        )
        loss_sum = (losses * batch.weight).sum()
        # ddp averages the gradients of the ranks. Scaled so, the average is the mean over the global batch,
        # also where the shares are unequal.
        loss = loss_sum * (worker.world_size / batch.global_size)
        optimizer.zero_grad(set_to_none=True)
        clock.at(Moment.FORWARD)
        session.record.at(Phase.EXCHANGE)
        scaler.scale(loss).backward()
        session.record.at(Phase.STEPPING)
        clock.at(Moment.BACKWARD)
        grad_norm = _clip(session) if config.grad_clip or is_logged else None
        scaler.step(optimizer)
        scaler.update()
        if session.lookahead:
            session.lookahead.after(session.step)
        clock.at(Moment.OPTIMIZER)

        with torch.no_grad():
            correct = ((logits.argmax(1) == batch.labels) * batch.weight).sum()
            sums[:3] += torch.stack([loss_sum.double(), correct.double(), batch.weight.sum().double()])
        session.record.beat(session.step)
        if is_logged or session.step % meet_every == 0:
            if worker.is_main and session.run.is_asked_to_stop:
                sums[3] += 1
            session.record.at(Phase.EXCHANGE)
            clock.at(Moment.ARRIVE)
            loss_total, num_correct, num_seen, asked_to_stop = reduce_sum(sums, worker)
            clock.at(Moment.MEET)
            session.record.at(Phase.STEPPING)
            sums.zero_()
            meter.add(loss_total, num_correct, num_seen)
            if not math.isfinite(loss_total):
                _log_step(session, meter, lr, grad_norm)
                return _diverged(session, "the training loss")
            if is_logged or asked_to_stop:
                _log_step(session, meter, lr, grad_norm)
            if asked_to_stop:
                if not _is_finite(session.model):
                    return _diverged(session, "a weight")
                save(session)
                return Outcome("stopped", session.step)
        clock.end(session.step)
        if is_last:
            break
    return None


def _late(batches: Iterator[Batch], seconds: float) -> Iterator[Batch]:
    """The same batches, each so much later: a lesson on what one slow rank costs all."""
    for batch in batches:
        time.sleep(seconds)
        yield batch


def _clip(session: Session) -> Tensor:
    """The gradient's norm before it is clipped; only measured where `grad_clip` is 0."""
    session.scaler.unscale_(session.optimizer)
    parameters = list(session.model.parameters())
    if session.config.grad_clip:
        return nn.utils.clip_grad_norm_(parameters, session.config.grad_clip)
    return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


@dataclass
class Meter:
    """Sums since the last point of the chart."""

    loss: float = 0.0
    correct: float = 0.0
    count: float = 0.0
    since: float = field(default_factory=time.perf_counter)

    def add(self, loss: float, correct: float, count: float) -> None:
        self.loss += loss
        self.correct += correct
        self.count += count

    def take(self) -> tuple[float, float, float]:
        """Mean loss, accuracy and images a second; starts anew."""
        now = time.perf_counter()
        result = self.loss / self.count, self.correct / self.count, self.count / (now - self.since)
        self.loss = self.correct = self.count = 0.0
        self.since = now
        return result


def _log_step(session: Session, meter: Meter, lr: float, grad_norm: Tensor | None) -> None:
    loss, accuracy, images_per_second = meter.take()
    norm = None if grad_norm is None else float(grad_norm)
    if norm is not None and session.scaler.is_enabled() and not math.isfinite(norm):
        norm = None  # fp16 overflowed: the scaler skips the step and lowers its scale, as it is meant to
    session.emit(
        "step",
        step=session.step,
        epoch=round(session.epoch, 6),
        loss=loss,
        accuracy=accuracy,
        lr=lr,
        images_per_second=round(images_per_second, 1),
        grad_norm=norm,
    )
    _tell_anatomy(session)


def _tell_anatomy(session: Session, is_last: bool = False) -> None:
    news = session.reporter.news(is_last) if session.reporter else None
    if news:
        session.emit("anatomy", **news)


def _end_epoch(session: Session) -> Outcome | None:
    """Evaluate if it is due, save, and see whether a goal is reached."""
    config = session.config
    if not _is_finite(session.model):
        return _diverged(session, "a weight")
    session.record.at(Phase.EXCHANGE)
    checksum = check_same_weights(session.model, session.worker)
    session.record.at(Phase.STEPPING)
    epochs_done = session.step // session.steps_per_epoch
    is_due = epochs_done % config.eval_every == 0 or session.step >= session.total_steps
    if not is_due or session.best["evaluated"] == session.step:
        save(session)
        return None
    result = evaluate(session)
    if result is None:
        save(session)
        return Outcome("stopped", session.step)
    best = session.best
    is_best = best["accuracy"] is None or result["accuracy"] > best["accuracy"]
    best["evaluated"] = session.step
    best["evaluations_since"] = 0 if is_best else best["evaluations_since"] + 1
    if is_best:
        best["accuracy"], best["step"] = result["accuracy"], session.step
    session.emit("eval", step=session.step, epoch=round(session.epoch, 6), **result, checksum=checksum)
    session.say(
        f"epoch {session.epoch:.4g}/{config.epochs}, step {session.step}: test loss {result['loss']:.4f}, "
        f"test accuracy {result['accuracy']:.2%} of {result['count']}"
    )
    save(session, result["accuracy"], is_best)
    if config.target_accuracy and result["accuracy"] >= config.target_accuracy:
        return Outcome("completed", session.step)
    if config.patience and best["evaluations_since"] >= config.patience:
        return Outcome("completed", session.step)
    return None


@torch.no_grad()
def evaluate(session: Session) -> dict[str, Any] | None:
    """Loss and accuracy over every test picture, each counted once on any number of ranks.

    Returns {loss, accuracy, count}; None if the run was asked to stop meanwhile, which all ranks agree on.
    """
    worker, device = session.worker, session.worker.device
    session.record.beat(session.step, Phase.EXCHANGE)
    share_buffers(session.model, worker)
    session.model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    largest_share = math.ceil(session.num_test / worker.world_size)
    batches = session.test_set.batches()
    for _ in range(math.ceil(largest_share / session.test_set.batch_size)):  # as many rounds on each rank
        session.record.beat(session.step, Phase.EXCHANGE)
        asked = float(worker.is_main and session.run.is_asked_to_stop)
        if reduce_sum(torch.tensor([asked], dtype=torch.float64, device=device), worker)[0]:
            return None
        session.record.beat(session.step, Phase.EVALUATING)
        share = next(batches, None)
        if share is None:
            continue
        images, labels = share
        with torch.autocast(device.type, session.autocast) if session.autocast else nullcontext():
            logits = session.model(images)
        logits = logits.double()
        sums += torch.stack(
            [
                F.cross_entropy(logits, labels, reduction="sum"),
                (logits.argmax(1) == labels).sum().double(),
                torch.tensor(float(len(labels)), dtype=torch.float64, device=device),
            ]
        )
    session.record.at(Phase.EXCHANGE)
    loss, correct, count = reduce_sum(sums, worker)
    session.record.at(Phase.STEPPING)
    assert count == session.num_test
    return {"loss": loss / count, "accuracy": correct / count, "count": int(count)}


def _is_finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())


def _diverged(session: Session, what: str) -> Outcome:
    advice = "lower the learning rate, add warm-up or clip the gradients"
    return Outcome("diverged", session.step, f"{what} is not finite at step {session.step}: {advice}")
