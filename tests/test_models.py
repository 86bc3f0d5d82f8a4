"""The networks have the shapes and sizes that are promised, and pooling early changes nothing but the time."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainer.config import TrainConfig, choices
from trainer.models import MODELS, build_model, num_parameters

COUNTS = {"tutorial": 8_475_530, "fast": 1_972_768, "resnet9": 6_573_120, "resnet18": 11_173_962}


@pytest.fixture(params=choices("model"))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def batch(n: int = 2) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_every_choice_of_the_settings_is_a_network():
    assert set(MODELS) == set(choices("model"))
    assert TrainConfig().model in MODELS


@pytest.mark.parametrize("num_classes", [2, 37])
def test_pictures_become_one_logit_for_each_class(name: str, num_classes: int):
    with torch.no_grad():
        assert build_model(name, num_classes)(batch()).shape == (2, num_classes)


def test_the_numbers_of_parameters_are_those_on_the_page(name: str):
    assert num_parameters(build_model(name, 10)) == COUNTS[name]
    shown = f"{COUNTS[name] / 1e6:.1f}"
    description = TrainConfig.model_fields["model"].description
    assert description
    assert shown in description


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(name: str):
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in build_model(name, 10).parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_the_weights_lie_in_channels_last(name: str):
    convolutions = [m for m in build_model(name, 10).modules() if isinstance(m, nn.Conv2d)]
    assert convolutions
    assert all(m.weight.is_contiguous(memory_format=torch.channels_last) for m in convolutions)


def test_a_gradient_reaches_every_weight_that_is_not_frozen(name: str):
    model = build_model(name, 10)
    F.cross_entropy(model(batch(2)), torch.arange(2)).backward()
    for name, parameter in model.named_parameters():
        is_trained = parameter.grad is not None and bool(parameter.grad.isfinite().all() and parameter.grad.any())
        assert is_trained == parameter.requires_grad, name


def test_pooling_before_the_relu_is_the_same_function_with_the_same_gradients():
    model = build_model("tutorial", 10).double()
    images, labels = batch(2).double(), torch.arange(2)

    def relu_first(x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(model.conv1(x)), 2)
        x = F.max_pool2d(F.relu(model.conv2(x)), 2)
        return model.fc2(F.relu(model.fc1(x.flatten(1))))

    def gradients(forward) -> list[torch.Tensor]:
        model.zero_grad()
        F.cross_entropy(forward(images), labels).backward()
        return [p.grad.clone() for p in model.parameters()]

    torch.testing.assert_close(model(images), relu_first(images), rtol=0, atol=1e-12)
    for ours, theirs in zip(gradients(model), gradients(relu_first), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_resnet18_keeps_small_pictures_large_at_its_stem():
    model = build_model("resnet18", 10)
    assert (model.conv1.kernel_size, model.conv1.stride, model.conv1.bias) == ((3, 3), (1, 1), None)
    with torch.no_grad():
        assert model.maxpool(model.relu(model.bn1(model.conv1(batch(1))))).shape == (1, 64, 32, 32)


def test_one_picture_alone_can_be_trained_on(name: str):
    assert build_model(name, 10).train()(batch(1)).shape == (1, 10)
