"""Lookahead averages as its formula says, on the steps that are due, and comes back from a checkpoint as it was."""

import pytest
import torch
from torch import nn

from trainer.lookahead import STRONGEST, Lookahead


def network(value: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    give(model, value)
    return model


def give(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def values(model: nn.Module) -> set[float]:
    return {
        round(float(v), 6)
        for tensor in model.state_dict().values()
        if tensor.is_floating_point()
        for v in tensor.flatten()
    }


def test_between_its_steps_it_leaves_the_weights_alone():
    model = network(0)
    lookahead = Lookahead(model, every=5, total_steps=100)
    give(model, 1)
    for step in (1, 2, 3, 4, 6, 99):
        lookahead.after(step)
    assert values(model) == {1.0}


def test_weights_and_running_statistics_are_pulled_back_the_more_the_later():
    for step in (5, 50, 95):
        model = network(0)
        lookahead = Lookahead(model, every=5, total_steps=100)
        give(model, 1)
        lookahead.after(step)
        assert values(model) == {round(1 - STRONGEST * (step / 100) ** 3, 6)}


def test_counters_are_not_averaged():
    model = network(0)
    lookahead = Lookahead(model, every=1, total_steps=2)
    model[1].num_batches_tracked.fill_(7)
    lookahead.after(1)
    assert int(model[1].num_batches_tracked) == 7


def test_the_last_step_ends_with_the_slow_weights_also_between_its_steps():
    model = network(0)
    lookahead = Lookahead(model, every=5, total_steps=103)
    give(model, 1)
    lookahead.after(100)
    slow = values(model)
    give(model, 2)
    lookahead.after(103)
    assert values(model) == slow


def test_it_goes_on_from_its_state_as_if_it_had_not_stopped():
    model, other = network(0), network(9)
    whole, resumed = Lookahead(model, 1, 10), Lookahead(other, 1, 10)
    give(model, 1)
    whole.after(3)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
    for each, lookahead in ((model, whole), (other, resumed)):
        give(each, 2)
        lookahead.after(4)
    assert values(model) == values(other)


@pytest.mark.parametrize("state", [{}, {"0.weight": torch.zeros(2, 2)}])
def test_the_state_of_another_network_is_refused(state: dict):
    with pytest.raises(ValueError, match="another network"):
        Lookahead(network(0), 1, 10).load_state_dict(state)


def test_weights_of_another_shape_are_refused():
    lookahead = Lookahead(network(0), 1, 10)
    state = {name: torch.zeros(3, 3) for name in lookahead.state_dict()}
    with pytest.raises(ValueError, match="another network"):
        lookahead.load_state_dict(state)
