"""A model of one's own with compiled layers in it: exported, read, its kernels played by the reference."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codegen.frontend.onnx.reader import read_checkpoint
from farm.bundle.reader import Bundle
from farm.torch.layer import Compute
from farm.torch.swap import Swapped, swapped
from tests.torch.bundles import whole_bundle
from tests.torch.test_networks import played


def exported(net: nn.Module, path: Path, exporter: str) -> Path:
    options: dict[str, Any] = {"dynamo": exporter == "dynamo", "input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecations within torch
        x = torch.zeros(1, 3, 12, 13, dtype=next(net.parameters()).dtype)
        torch.onnx.export(net, (x,), str(path), **options)
    return path


def bundled(model: Path) -> tuple[Bundle, dict[str, Compute]]:
    checkpoint = read_checkpoint(model)
    bundle = Bundle(whole_bundle(model.with_suffix(".farm"), checkpoint))
    return bundle, {layer.name: partial(played, layer) for layer in checkpoint.layers}


def swapped_net(net: nn.Module, folder: Path, exporter: str = "torchscript", **options: Any) -> Swapped:
    return swapped(net, *bundled(exported(net, folder / "net.onnx", exporter)), **options)


def called(found: Swapped) -> list[str]:
    return [node.target for node in found.module.graph.nodes if node.op == "call_module"]
