"""What a bundle answers: its machine code on a GPU, or its PTX in the emulator."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import farm.torch
from codegen import emulate
from codegen.onnx.network import read_network
from farm.runtime.bundle import Bundle, BundledLayer
from farm.torch.layer import output_shape
from farm.torch.module import module_of


def labels(bundle: Path, images: torch.Tensor) -> np.ndarray:
    """Of each image; the bundle was fetched with its PTX, or there is a GPU."""
    gpu = torch.cuda.is_available()
    network = farm.torch.load(bundle) if gpu else emulated(bundle)
    with torch.inference_mode():
        scores = network(images.to("cuda" if gpu else "cpu"))
    found: np.ndarray = scores.argmax(1).cpu().numpy()
    return found


def emulated(path: Path) -> nn.Module:
    """The network of a bundle whose compiled layers are computed by their PTX in the emulator."""
    bundle = Bundle(path)
    compute = {name: partial(_run, bundle, layer) for name, layer in bundle.layers.items()}
    return module_of(read_network(bundle.network), bundle.layers, compute).eval()


def _run(bundle: Bundle, layer: BundledLayer, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    output = x.new_full(output_shape(layer.spec, x.shape), float("nan"))
    count = output.numel() // int(np.prod(layer.spec.output_shape))
    tensors = {"input": x, "residual": residual, "output": output}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
    for part in layer.ptx:
        launch = part.launch
        arguments = {**arrays, **launch.numbers(count)}
        values = [arguments[name] for name in launch.arguments]
        emulate.run(bundle.cubin(part), launch.grid_at(count), launch.block, launch.shared_bytes, values)
    return output
