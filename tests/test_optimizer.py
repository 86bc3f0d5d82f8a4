"""What is trained, how fast, and with which settings."""

import pytest
import torch
from torch import nn

from trainer.config import TrainConfig
from trainer.models import build_model
from trainer.optimizer import build_optimizer, parameter_groups


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_optimizer_has_the_settings_of_the_run(optimizer: str):
    config = TrainConfig(optimizer=optimizer, lr=0.3, momentum=0.8, weight_decay=0.01, nesterov=True)
    built = build_optimizer(nn.Linear(1, 1), config)
    (group,) = built.param_groups
    assert type(built).__name__.lower() == optimizer
    assert (group["lr"], group["weight_decay"], group["lr_scale"]) == (0.3, 0.01, 1.0)
    assert optimizer == "adamw" or (group["momentum"], group["nesterov"]) == (0.8, True)


def test_biases_of_batchnorm_learn_faster_and_decay_as_the_others_do():
    model = build_model("resnet9", 10)
    others, biases = parameter_groups(model, bias_lr=64, weight_decay=0.1)
    expected = [p for name, p in model.named_parameters() if name.endswith("norm.bias")]
    assert len(expected) == 8
    assert [id(p) for p in biases["params"]] == [id(p) for p in expected]
    assert len(others["params"]) + len(expected) == len(list(model.parameters()))
    assert (others["lr_scale"], others["weight_decay"]) == (1.0, 0.1)
    assert biases["lr_scale"] == 64
    assert biases["lr_scale"] * biases["weight_decay"] == pytest.approx(0.1)


def test_frozen_weights_are_not_trained():
    model = build_model("fast", 10)
    trained = [id(p) for group in parameter_groups(model, 64, 0) for p in group["params"]]
    assert sorted(trained) == sorted(id(p) for p in model.parameters() if p.requires_grad)


def test_a_network_without_batchnorm_has_one_group_whatever_the_rate_of_its_biases():
    assert len(parameter_groups(build_model("tutorial", 10), bias_lr=64, weight_decay=0)) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_step_is_as_torchs_own_with_the_rate_of_each_group(optimizer: str):
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(3)
    config = TrainConfig(optimizer=optimizer, lr=0.1, bias_lr=2.0, weight_decay=0.5, momentum=0.0)
    with torch.no_grad():
        layer.bias.fill_(1)
    built = build_optimizer(layer, config)
    layer.weight.grad, layer.bias.grad = torch.zeros(3), torch.zeros(3)
    for group in built.param_groups:
        group["lr"] = config.lr * group["lr_scale"]
    built.step()
    for parameter in (layer.weight, layer.bias):  # only decay moves them, each by lr * weight_decay
        torch.testing.assert_close(parameter.data, torch.full((3,), 1 - 0.1 * 0.5))
