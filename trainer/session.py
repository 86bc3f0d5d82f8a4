"""What one rank holds while it trains: the network, its optimizer, the data and how far it is."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainer import checkpoint
from trainer.anatomy import Reporter, steps_path
from trainer.config import TrainConfig
from trainer.data import TestSet, TrainSet, normalise, to_tensor
from trainer.datasets.prepare import Prepared
from trainer.devices import cpu_has_bf16
from trainer.events import EventWriter
from trainer.log import say
from trainer.lookahead import Lookahead
from trainer.models import FIT_PICTURES, build_model, fit_to
from trainer.optimizer import build_optimizer
from trainer.parallel import Worker, wrap
from trainer.pulse import Phase
from trainer.ranks import RankRecord
from trainer.restore import restore
from trainer.runs import Run
from trainer.step_clock import NoClock, StepClock

ARTICLE_NORMALISATION = {"mean": [0.5] * 3, "std": [0.5] * 3}


@dataclass
class Session:
    """One rank's hold on a run while it trains."""

    config: TrainConfig
    worker: Worker
    run: Run
    events: EventWriter | None  # rank 0 only
    record: RankRecord
    classes: list[str]
    normalisation: dict[str, list[float]]
    train_set: TrainSet
    test_set: TestSet
    num_test: int
    model: nn.Module  # saved and evaluated
    net: nn.Module  # the same weights, wrapped for the mode
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    lookahead: Lookahead | None
    autocast: torch.dtype | None
    steps_per_epoch: int
    total_steps: int
    clock: NoClock
    reporter: Reporter | None  # rank 0 only
    step: int = 0  # optimizer steps made
    save_failed: bool = False  # the newest checkpoint could not be written, which was told
    best: dict[str, Any] = field(
        default_factory=lambda: {"accuracy": None, "step": 0, "evaluated": 0, "evaluations_since": 0}
    )

    @property
    def epoch(self) -> float:
        """Epochs done, with the part of the one under way."""
        return self.step / self.steps_per_epoch

    def emit(self, kind: str, **fields: Any) -> None:
        if self.events is not None:
            self.events.write(kind, **fields)

    def say(self, text: str) -> None:
        if self.worker.is_main:
            say(text)


def choose_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """The type for autocast, None for plain fp32. What the device cannot do quickly falls back to fp32."""
    if device.type == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        name = ("bf16" if bf16 else "fp16") if precision == "auto" else precision
        return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    return torch.bfloat16 if precision in ("auto", "bf16") and cpu_has_bf16() else None


def begin(config: TrainConfig, worker: Worker, run: Run, prepared: Prepared, record: RankRecord) -> Session:
    """Build everything, and go on from the run's checkpoint if it has one. Raises CheckpointError."""
    device = worker.device
    measured = {"mean": list(prepared.mean), "std": list(prepared.std)}
    normalisation = ARTICLE_NORMALISATION if config.model == "tutorial" else measured
    train_set = TrainSet(
        to_tensor(prepared.train_images),
        to_tensor(prepared.train_labels),
        normalisation,
        config.augment,
        device,
    )
    test_set = TestSet(
        to_tensor(prepared.test_images),
        to_tensor(prepared.test_labels),
        normalisation,
        device,
        worker.rank,
        worker.world_size,
    )
    record.at(Phase.PREPARING)  # all of this may take long on a busy machine
    torch.manual_seed(config.seed)
    model = build_model(config.model, len(prepared.classes)).to(torch.get_default_dtype())
    few = prepared.train_images[:: max(1, len(prepared.train_images) // FIT_PICTURES)]
    fit_to(model, normalise(to_tensor(few), **normalisation))
    model.to(device)
    record.at(Phase.PREPARING)
    autocast = choose_precision(config.precision, device)
    steps_per_epoch = math.ceil(len(train_set) / config.batch_size)
    total_steps = config.epochs * steps_per_epoch
    total_steps = min(total_steps, config.max_steps or total_steps)
    clock = StepClock(steps_path(run, worker.rank), device) if config.anatomy else NoClock()
    session = Session(
        config=config,
        worker=worker,
        run=run,
        events=EventWriter(run.events_path) if worker.is_main else None,
        record=record,
        classes=list(prepared.classes),
        normalisation=normalisation,
        train_set=train_set,
        test_set=test_set,
        num_test=len(prepared.test_labels),
        model=model,
        net=model,
        optimizer=build_optimizer(model, config),
        scaler=torch.amp.GradScaler(device.type, enabled=autocast is torch.float16),
        lookahead=Lookahead(model, config.lookahead, total_steps) if config.lookahead else None,
        autocast=autocast,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        clock=clock,
        reporter=Reporter(run, worker.world_size) if worker.is_main and config.anatomy else None,
    )
    record.at(Phase.PREPARING)
    restore(session)
    if config.compile and device.type == "cuda":
        model.compile()  # in place: the names of the weights stay as they are
    record.at(Phase.EXCHANGE)
    session.net = wrap(model, worker, clock, config.bucket_mb)
    record.at(Phase.PREPARING)
    return session


def save(session: Session, accuracy: float | None = None, is_best: bool = False) -> None:
    """Rank 0 writes `last.pt`, and `best.pt` if this is the best. A full disk costs the checkpoint, not the run."""
    if not session.worker.is_main:
        return
    session.record.at(Phase.SAVING)
    last, previous, best = (session.run.checkpoint_path(name) for name in ("last", "previous", "best"))
    state = {
        "model": session.model.state_dict(),
        "optimizer": session.optimizer.state_dict(),
        "schedule": _schedule(session),
        "epoch": session.step // session.steps_per_epoch,
        "step": session.step,
        "best": session.best,
        "config": session.config.model_dump(),
        "classes": session.classes,
        "normalise": session.normalisation,
    }
    path = last
    try:
        checkpoint.save(last, state, previous)
        session.emit("checkpoint", step=session.step, path=last.name, accuracy=accuracy)
        session.save_failed = False
        if is_best:
            path = best
            checkpoint.promote(last, best)
            session.emit("checkpoint", step=session.step, path=best.name, accuracy=accuracy)
    except OSError as error:
        _tell_failure(session, path.name, error)
    finally:
        session.record.at(Phase.STEPPING)


def _schedule(session: Session) -> dict[str, Any]:
    """What changes with the steps beside weights and optimizer."""
    state = {"total_steps": session.total_steps, "scaler": session.scaler.state_dict()}
    return state | ({"lookahead": session.lookahead.state_dict()} if session.lookahead else {})


def _tell_failure(session: Session, name: str, error: OSError) -> None:
    """Once, until a checkpoint can be written again."""
    if session.save_failed:
        return
    session.save_failed = True
    text = (
        f"{name} of step {session.step} could not be written ({error.strerror or error}); "
        "training goes on and tries again after each epoch."
    )
    session.emit("warning", text=text)
    session.say(text)
