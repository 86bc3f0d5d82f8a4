"""How a run stands: derived from its events and its living process each time, never stored. Imports no torch."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from trainer.event_reader import Block, EventTail, StepLines
from trainer.events import Event

if TYPE_CHECKING:
    from trainer.runs import Run


class RunStatus(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"

    @property
    def living(self) -> bool:
        """A process is at work."""
        return self in (RunStatus.STARTING, RunStatus.RUNNING, RunStatus.STOPPING)


_FINAL = (RunStatus.COMPLETED, RunStatus.STOPPED, RunStatus.FAILED, RunStatus.DIVERGED)  # what an `end` event may say


@dataclass
class RunState:
    """What a run's events add up to, folded as they arrive."""

    run: "Run"
    start: Event = field(default_factory=dict)  # the newest of each kind; {} if there is none
    step: Event = field(default_factory=dict)
    evaluation: Event = field(default_factory=dict)
    end: Event = field(default_factory=dict)
    progress: str = ""
    warnings: list[str] = field(default_factory=list)
    accuracies: list[tuple[int, float]] = field(default_factory=list)  # (step, test accuracy) of each evaluation
    status: RunStatus = RunStatus.QUEUED
    process: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tail = EventTail(self.run.events_path)
        self._positions = {"start": -1, "step": -1, "end": -1}

    def update(self) -> list[Block]:
        """Read the next part of what is new, and return it; `has_more` tells whether there is another."""
        # Before the events: a process that ends in between leaves its `end` to be read.
        self.process = self.run.process() or {}
        is_alive = self.run.is_at_work(self.process)
        generation = self._tail.generation
        found = self._tail.read()
        if self._tail.generation != generation:
            tail = self._tail
            self.__dict__.update(RunState(self.run, process=self.process).__dict__)
            self._tail = tail
        for block in found:
            known = block.newest() if isinstance(block, StepLines) else block
            if known is not None:
                self._fold(*known)
        self.status = self._derive(is_alive)
        return found

    @property
    def has_more(self) -> bool:
        return self._tail.has_more

    def read_all(self) -> "RunState":
        """Read all that is new, in parts, so that a long run is never in memory as a whole. Returns itself."""
        self.update()
        while self.has_more:
            self.update()
        return self

    def _fold(self, position: int, event: Event) -> None:
        match event["kind"]:
            case "start":
                self.start, self.progress = event, ""
                self._positions["start"] = position
                self._take_back(event.get("step", 0))
            case "step":
                self.step = event
                self._positions["step"] = position
            case "eval":
                self.evaluation = event
                if event.get("accuracy") is not None:
                    self.accuracies.append((event.get("step", 0), event["accuracy"]))
            case "end":
                self.end, self.progress = event, ""
                self._positions["end"] = position
            case "progress":
                self.progress = str(event.get("text", ""))
            case "warning":
                text = str(event.get("text", ""))
                if text not in self.warnings:
                    self.warnings.append(text)

    def _take_back(self, step: int) -> None:
        """A resumed run goes on at `step`: what came later is superseded."""
        self.accuracies = [known for known in self.accuracies if known[0] <= step]
        if self.evaluation.get("step", 0) > step:
            self.evaluation = {}
        if self.step.get("step", 0) > step:
            self.step = {}

    def _derive(self, is_alive: bool) -> RunStatus:
        if not self.process:
            return RunStatus.QUEUED
        mine = self.process.get("events_offset", 0)
        if mine > self._tail.size:  # the file was cut or replaced: all of it is newer
            mine = 0
        if self._positions["end"] >= mine:
            said = self.end.get("status")
            return RunStatus(said) if said in _FINAL else RunStatus.INTERRUPTED
        if not is_alive:
            return RunStatus.INTERRUPTED
        if self.run.is_asked_to_stop:
            return RunStatus.STOPPING
        has_begun = max(self._positions["start"], self._positions["step"]) >= mine
        return RunStatus.RUNNING if has_begun else RunStatus.STARTING

    @property
    def best_accuracy(self) -> float | None:
        """The best test accuracy so far, from 0 to 1; None before the first evaluation."""
        return max((accuracy for _, accuracy in self.accuracies), default=None)

    @property
    def epoch(self) -> float:
        """Epochs that lie behind the run, with the part of the one under way."""
        return max(float(event.get("epoch") or 0) for event in (self.step, self.evaluation))

    def can_go_on_to(self, epochs: int) -> bool:
        """Whether there is more to do up to so many epochs; what was cut short in its last moment is not yet done."""
        return self.epoch < epochs or (self.epoch == epochs and self.status != RunStatus.COMPLETED)

    def suggested_epochs(self) -> int:
        """How far to go when it is resumed: the rest of a run that was cut short, as much again for a done one."""
        epochs = self.run.config().epochs
        return epochs if self.can_go_on_to(epochs) else 2 * epochs

    @property
    def error(self) -> str:
        """Why the run failed or diverged; "" otherwise."""
        if self.status in (RunStatus.FAILED, RunStatus.DIVERGED):
            return str(self.end.get("error") or "")
        if self.status == RunStatus.INTERRUPTED:
            return (
                "The trainer's process ended without a word: killed, out of memory, or the machine went down. "
                "Resume goes on from the last checkpoint."
            )
        return ""

    def summary(self) -> dict[str, Any]:
        """One row of `list`."""
        processes, wanted, label = 0, "-", ""
        try:
            config = self.run.config()
            processes, wanted, label = config.processes, config.devices, config.label
        except ValueError as error:  # it may be at work all the same
            label = f"its settings cannot be read: {error}"
        world_size = self.start.get("world_size", processes)
        names = self.start.get("devices")
        devices = ", ".join(dict.fromkeys(names)) if names else wanted
        return {
            "id": self.run.id,
            "status": str(self.status),
            "parallel": self.run.id.split("-")[2],
            "devices": devices + (f", {world_size} ranks" if world_size > 1 else ""),
            "epoch": self.step.get("epoch", 0),
            "step": self.step.get("step", 0),
            "best_accuracy": self.best_accuracy,
            "images_per_second": self.step.get("images_per_second"),
            "started": self.process.get("started"),
            "label": label,
        }
