"""Going on from a checkpoint: the first of last, previous and best that can be used, the same one on every rank."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from trainer import checkpoint
from trainer.checkpoint import CheckpointError
from trainer.pulse import Phase
from trainer.runs import CHECKPOINTS

if TYPE_CHECKING:
    from trainer.session import Session


def restore(session: "Session") -> None:
    """Put the session where the run's newest usable checkpoint is; at the start if the run has none.

    Rank 0 alone reads and chooses, and gives the others the bytes: ranks that read for themselves could differ in
    what they find. What cannot be used is named in a warning. Raises CheckpointError, on every rank, if there are
    checkpoints and none can be used.
    """
    name, data, refusal = _choose(session) if session.worker.is_main else ("", b"", "")
    if session.worker.world_size > 1:
        box: list[Any] = [(name, data, refusal)]
        session.record.at(Phase.EXCHANGE)
        dist.broadcast_object_list(box, src=0, device=session.worker.device)
        session.record.at(Phase.PREPARING)
        name, data, refusal = box[0]
    if refusal:
        raise CheckpointError(refusal)
    if name and not session.worker.is_main:
        path = session.run.checkpoint_path(name)
        fit(session, checkpoint.parse(data, path), path)


def _choose(session: "Session") -> tuple[str, bytes, str]:
    """Restores this rank. (name, bytes, "") of what it goes on from, two empty ones without any, or a refusal."""
    run = session.run
    reasons: list[str] = []
    for name in CHECKPOINTS:
        path = run.checkpoint_path(name)
        try:
            data = checkpoint.read(path)
            fit(session, checkpoint.parse(data, path), path)
        except checkpoint.MissingError as error:
            if name == "last":  # the others are not there yet after the first epoch
                reasons.append(str(error))
            continue
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        for reason in reasons:
            text = f"{reason}; the run goes on from {path.name} of step {session.step}."
            session.emit("warning", text=text)
            session.say(text)
        return name, data, ""
    if not run.has_checkpoint:
        return "", b"", ""
    listed = "; ".join(reasons)
    return "", b"", f"no checkpoint of {run.id} can be used ({listed}): undo what was changed, or start a new run"


def fit(session: "Session", state: dict[str, Any], path: Path) -> None:
    """Take a checkpoint over into the session. Raises CheckpointError if it does not fit it."""
    config = session.config
    if state["classes"] != session.classes:
        raise CheckpointError(f"{path} was trained on other classes than the data set has now")
    batch_size = state["config"].get("batch_size")
    if batch_size != config.batch_size:
        raise CheckpointError(f"{path} was trained with batch_size {batch_size}, and the run has {config.batch_size}")
    if state["epoch"] != state["step"] // session.steps_per_epoch:
        raise CheckpointError(f"{path} was trained on another number of pictures than the data set has now")
    optimizer = state["config"].get("optimizer")
    if optimizer != config.optimizer:
        raise CheckpointError(f"{path} was trained with the optimizer {optimizer}, and the run has {config.optimizer}")
    try:
        best = _best(state["best"])
        _take_weights(session, state)
    except Exception as error:  # what does not fit raises nearly anything
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} does not fit these settings: {reason}") from None
    session.step, session.best = state["step"], best


def _best(best: dict[str, Any]) -> dict[str, Any]:
    """{accuracy, step, evaluated, evaluations_since}, each of its type."""
    accuracy = best["accuracy"]
    counts = {key: int(best[key]) for key in ("step", "evaluated", "evaluations_since")}
    return {"accuracy": None if accuracy is None else float(accuracy), **counts}


def _take_weights(session: "Session", state: dict[str, Any]) -> None:
    model, optimizer, scaler = session.model, session.optimizer, session.scaler
    model.load_state_dict(state["model"])
    settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state["optimizer"])
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)  # the settings of this run decide, not those of the file
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and value.shape != parameter.shape:
                raise ValueError(f"the optimizer's {key} has another shape than its weight")
    if session.lookahead:  # one that was not saved, as by a run without, starts from the weights
        session.lookahead.load_state_dict(state["schedule"].get("lookahead") or session.lookahead.fast)
    if scaler.is_enabled() and state["schedule"].get("scaler"):  # without one in fp32, which has no scale
        scaler.load_state_dict(state["schedule"]["scaler"])
