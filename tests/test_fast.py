"""The fast network begins as its docstring says: whitened input, identity, no scale."""

import pytest
import torch
from torch.nn import functional as F

from trainer.fast import WHITENED, Fast
from trainer.models import build_model, fit_to


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """64 smooth pictures of three colours that go together, as in photographs."""
    draw = torch.randn(64, 1, 10, 10, generator=torch.Generator().manual_seed(0))
    colours = torch.tensor([1.0, 0.8, 0.5]).view(1, 3, 1, 1)
    noise = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return F.interpolate(draw, 32, mode="bilinear") * colours + 0.1 * noise


def test_the_first_layer_whitens_the_patches_of_the_pictures(images: torch.Tensor):
    model = Fast(10)
    model.fit_to(images)
    out = model.whiten(images).detach().movedim(1, 0).flatten(1)[:WHITENED]
    second_moments = out @ out.T / out.shape[1]
    assert (second_moments - second_moments.diag().diag()).abs().max() < 1e-2  # nothing goes together any more
    assert second_moments.diag()[:6].min() > 0.9  # strong directions have variance 1
    assert second_moments.diag().max() < 1.01  # weak ones are not blown up beyond it


def test_each_direction_is_there_with_both_signs(images: torch.Tensor):
    model = Fast(10)
    model.fit_to(images)
    plus, minus = model.whiten.weight.split(WHITENED)
    assert torch.equal(plus, -minus)


def test_the_first_directions_are_those_of_the_largest_variance(images: torch.Tensor):
    model = Fast(10)
    model.fit_to(images)
    norms = model.whiten.weight[:WHITENED].flatten(1).norm(dim=1)  # 1 / deviation
    assert torch.equal(norms, norms.sort().values)


def test_whitening_and_the_scale_of_batchnorm_stay_as_they_are():
    frozen = {name for name, parameter in Fast(10).named_parameters() if not parameter.requires_grad}
    assert frozen == {"whiten.weight"} | {f"stages.{i}.norm{j}.weight" for i in range(3) for j in (1, 2)}


def test_a_convolution_begins_with_copies_of_its_input():
    x = torch.randn(1, 24, 5, 5)
    out = Fast(10).stages[0].conv1(x)
    assert out.shape[1] == 64
    torch.testing.assert_close(out[:, :24], x)


def test_pictures_of_any_data_set_fit_and_one_alone_does_too():
    for n in (1, 3):
        model = build_model("fast", 2).double()
        fit_to(model, torch.rand(n, 3, 32, 32, dtype=torch.float64))
        assert all(bool(value.isfinite().all()) for value in model.state_dict().values())


def test_pictures_of_one_colour_leave_finite_weights():
    model = build_model("fast", 2)
    fit_to(model, torch.zeros(4, 3, 32, 32))
    assert bool(model.whiten.weight.isfinite().all())


def test_other_networks_take_nothing_from_the_data():
    model = build_model("tutorial", 2)
    before = [parameter.clone() for parameter in model.parameters()]
    fit_to(model, torch.rand(4, 3, 32, 32))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
