"""The loop to compare with: the article's network, its forgotten pool restored, its loader, its settings, in fp32.

Pictures come one by one through `torch.utils.data.DataLoader` with two workers and PIL transforms, and the loss is
read after every step, as in the article's listing.
"""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

TRANSFORM = transforms.Compose(
    [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ]
)


class Pictures(Dataset):
    """As torchvision's CIFAR10 once it is read: an array, and PIL for each picture."""

    def __init__(self, images: np.ndarray, labels: np.ndarray):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return TRANSFORM(Image.fromarray(self.images[index])), int(self.labels[index])


class Net(nn.Module):
    """The article's layers; the first ReLU is followed by the missing pool."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1)
        self.conv2 = nn.Conv2d(64, 128, kernel_size=3, stride=1, padding=1)
        self.fc1 = nn.Linear(128 * 8 * 8, 1024)
        self.fc2 = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def loader(images: np.ndarray, labels: np.ndarray, batch_size: int, num_workers: int) -> DataLoader:
    """The article's loader; its workers live on between epochs, so that no slice pays for starting them."""
    return DataLoader(
        Pictures(images, labels),
        batch_size=batch_size,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )


def article_loop(images: np.ndarray, labels: np.ndarray, batch_size: int) -> Callable[[], int]:
    """One epoch over `images` a call; returns how many pictures were trained on."""
    batches = loader(images, labels, batch_size, num_workers=2)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    criterion = nn.CrossEntropyLoss()

    def epoch() -> int:
        running_loss = 0.0
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = criterion(net(inputs), targets)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        assert np.isfinite(running_loss)
        return len(images)

    return epoch
