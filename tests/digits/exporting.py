"""A network as an ONNX file, by each of PyTorch's two exporters."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import onnxruntime
import torch
from torch import nn

Exporter = Literal["torchscript", "dynamo"]
EXPORTERS: tuple[Exporter, ...] = get_args(Exporter)


def export(network: nn.Module, example: torch.Tensor, path: Path, exporter: Exporter) -> None:
    """Writes the network for any number of images; `example` [2, ...] is what it is traced with."""
    with warnings.catch_warnings():
        # Both exporters warn of themselves, and of a torchvision that nobody needs here.
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        if exporter == "dynamo":
            shapes = ({0: torch.export.Dim("images")},)
            torch.onnx.export(network, (example,), path, dynamo=True, dynamic_shapes=shapes, verbose=False)
        else:
            names = {"input_names": ["input"], "dynamic_axes": {"input": {0: "images"}}}
            torch.onnx.export(network, (example,), path, dynamo=False, **names)


def onnxruntime_labels(model: Path, images: torch.Tensor) -> np.ndarray:
    """The label of each image by onnxruntime."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    [scores] = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    labels: np.ndarray = scores.argmax(1)
    return labels
