"""Answers of a bundle: by its machine code on a GPU, or by its PTX in the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

import farm.torch
from tests.digits.typed import typed


def labels(bundle: Path, images: torch.Tensor) -> np.ndarray:
    """The label of each image. The bundle was fetched with its PTX, or there is a GPU."""
    found: np.ndarray = (_on_gpu if torch.cuda.is_available() else _emulated)(bundle, images).argmax(1)
    return found


def _on_gpu(bundle: Path, images: torch.Tensor) -> np.ndarray:
    network = farm.torch.load(bundle)
    with torch.inference_mode():
        scores: np.ndarray = network(images.cuda()).cpu().numpy()
    return scores


def _emulated(bundle: Path, images: torch.Tensor) -> np.ndarray:
    given, made = (bundle.with_name(f"{bundle.name}-{name}.npy") for name in ("images", "scores"))
    np.save(given, images.numpy())
    typed("run", str(bundle), "--input", str(given), "-o", str(made), "--emulate")
    scores: np.ndarray = np.load(made)
    return scores
