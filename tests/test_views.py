"""Six views of a picture, weighed as stated; a network that sees them all alike answers as with one."""

import torch
from torch.nn import functional as F

from trainer.views import NUM_VIEWS, six_views


def test_the_views_are_two_shifts_and_the_picture_itself_each_also_mirrored():
    image = torch.rand(1, 3, 32, 32)
    seen: list[torch.Tensor] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x.flatten(1)

    answer = six_views(model, image)
    assert len(seen) == NUM_VIEWS
    wide = F.pad(image, (1, 1, 1, 1), "reflect")
    plain = [image, wide[:, :, :32, :32], wide[:, :, 2:, 2:]]
    for i, view in enumerate(plain):
        assert torch.equal(seen[2 * i], view)
        assert torch.equal(seen[2 * i + 1], view.flip(-1))
    weights = [0.25, 0.25, 0.125, 0.125, 0.125, 0.125]
    expected = sum(weight * view.flatten(1) for weight, view in zip(weights, seen, strict=True))
    torch.testing.assert_close(answer, expected)


def test_a_network_that_sees_all_views_alike_answers_as_with_one():
    images = torch.full((4, 3, 32, 32), 0.5)
    torch.testing.assert_close(six_views(lambda x: x.mean((2, 3)), images), images.mean((2, 3)))
