"""Lookahead: slow weights that follow the trained ones and now and then take their place.

Michael R. Zhang et al., "Lookahead Optimizer: k steps forward, 1 step back" (arXiv:1907.08610); the strength that
grows with the cube of the progress is airbench's (https://github.com/KellerJordan/cifar10-airbench).
"""

from typing import Any

import torch
from torch import Tensor, nn

STRONGEST = 0.95**5  # share that the slow weights keep at the end of the run


class Lookahead:
    """Pulls `model` to a moving average of itself every `every` steps, and to its end with the last step."""

    def __init__(self, model: nn.Module, every: int, total_steps: int):
        self.every = every
        self.total_steps = total_steps
        self.fast = _floats(model)
        self.slow = {name: value.clone() for name, value in self.fast.items()}

    @torch.no_grad()
    def after(self, step: int) -> None:
        """To be called after each step, counted from 1; the same on every rank."""
        is_last = step == self.total_steps
        if step % self.every and not is_last:
            return
        kept = STRONGEST * (step / self.total_steps) ** 3
        for name, slow in self.slow.items():
            if step % self.every == 0:
                slow.lerp_(self.fast[name], 1 - kept)
            self.fast[name].copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        return dict(self.slow)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError if `state` is not that of such a network."""
        if set(state) != set(self.slow) or any(state[name].shape != slow.shape for name, slow in self.slow.items()):
            raise ValueError("its slow weights are those of another network")
        for name, slow in self.slow.items():
            slow.copy_(state[name])


def _floats(model: nn.Module) -> dict[str, Tensor]:
    """The weights and running statistics, which share their memory with the network's; no counters."""
    return {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
