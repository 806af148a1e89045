"""Small networks that read digits, trained and pruned by magnitude in steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = (0.5, 0.7, 0.8, 0.9, 0.95)
"""Sparsities, one after the other, each with fine-tuning."""
KEPT = (0.9, 0.95)
"""Sparsities at which the network is compiled."""
LABELS = 10
BATCH = 64
LEARNING_RATE, FINE_RATE = 3e-3, 1e-3


Masks = Mapping[nn.Parameter, torch.Tensor]
"""Masks of the remaining weights, by parameter."""


@dataclass(frozen=True)
class Digits:
    """Images [n, 1, height, width], 0 to 1, and their labels; some are held out for tests."""

    images: torch.Tensor
    labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor

    @staticmethod
    def load() -> Digits:
        """scikit-learn's 1,797 images of 8 x 8 pixels, of which a fifth of each label is for tests."""
        digits = load_digits()
        images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
        labels = torch.tensor(digits.target)
        parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=digits.target)
        images, test_images, labels, test_labels = parts
        return Digits(images, labels, test_images, test_labels)


def small_network() -> nn.Sequential:
    """Three convolutions with batch normalisation and a fully connected layer: 24,000 weights."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, LABELS)),
    )


@dataclass(frozen=True)
class Trained:
    """A copy of the network at one sparsity."""

    sparsity: float
    """The sparsity asked for; 0 before pruning."""
    accuracy: float
    """Share of the test images that it tells right."""
    network: nn.Sequential


def train_and_prune(
    network: nn.Sequential, digits: Digits, *, epochs: int, fine_epochs: int, last: float
) -> Iterator[Trained]:
    """Trains a network, then prunes and fine-tunes it at each of STEPS up to `last`: a copy after each.

    The layers are expected to be too small for several threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other
    try:
        _train(network, digits, epochs, LEARNING_RATE, {})
        yield Trained(0.0, accuracy(network, digits), deepcopy(network).eval())
        for sparsity in (step for step in STEPS if step <= last):
            masks = prune(network, sparsity)
            _train(network, digits, fine_epochs, FINE_RATE, masks)
            yield Trained(sparsity, accuracy(network, digits), deepcopy(network).eval())
    finally:
        torch.set_num_threads(threads)


def prune(network: nn.Module, sparsity: float) -> Masks:
    """Zeroes the smallest weights of all layers together; gives what is left, as a mask for each layer's weights."""
    weights = [module.weight for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    sizes = torch.cat([weight.detach().abs().flatten() for weight in weights])
    smallest = torch.zeros(len(sizes), dtype=torch.bool)
    smallest[sizes.argsort()[: round(sparsity * len(sizes))]] = True
    parts = (~smallest).split([weight.numel() for weight in weights])
    masks = {weight: part.reshape(weight.shape) for weight, part in zip(weights, parts, strict=True)}
    _apply(masks)
    return masks


def _apply(masks: Masks) -> None:
    for weight, mask in masks.items():
        weight.data *= mask


def accuracy(network: nn.Module, digits: Digits) -> float:
    """On the test images."""
    network.eval()
    with torch.inference_mode():
        return float((network(digits.test_images).argmax(1) == digits.test_labels).float().mean())


def _train(network: nn.Module, digits: Digits, epochs: int, rate: float, masks: Masks) -> None:
    network.train()
    optimiser = torch.optim.Adam(network.parameters(), rate, weight_decay=1e-4)
    count = len(digits.images)
    for _ in range(epochs):
        for chosen in torch.randperm(count).split(BATCH):
            optimiser.zero_grad()
            cross_entropy(network(digits.images[chosen]), digits.labels[chosen]).backward()
            optimiser.step()
            _apply(masks)
