"""Small layers, checkpoints and a toolchain that runs nothing, for the tests of the farm."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen import keys
from codegen.ir.checkpoint import Checkpoint, Layer, Weights
from codegen.ir.launch import GridSize, Launch
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, LayerSpec, Linear, SkippedLayer
from codegen.ir.tiling import Part, Tiling
from codegen.model_zoo import prune
from codegen.selection.choose import choose_tiling
from codegen.toolchain.tools import Toolchain

SMALL = Conv2d(3, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1))
SMALLER = Conv2d(2, 6, 6, 3, 3, 3)
LAUNCH = Launch("conv2d", (GridSize(2), GridSize(images=4), GridSize(3)), (96, 1, 1), 1536)
"""A launch of no kernel."""

OPERATORS = {Conv2d: "Conv", ConvTranspose2d: "ConvTranspose", Linear: "Gemm"}


def layer(name: str = "conv1", spec: LayerSpec = SMALL, sparsity: float = 0.9, seed: int = 0) -> Layer:
    rng = np.random.default_rng(seed)
    kernel = prune(rng.standard_normal(spec.weights_shape, dtype=np.float32), sparsity)
    weights = Weights(kernel, rng.standard_normal(spec.output_channels, dtype=np.float32))
    return Layer(name, spec, weights, f"{name}.in", f"{name}.out", operator=OPERATORS[type(spec)])


def checkpoint(*layers: Layer, name: str = "net", skipped: tuple[SkippedLayer, ...] = ()) -> Checkpoint:
    parts = [(each.name, str(each.spec), each.weights.digest) for each in layers]
    digest = hashlib.sha256(repr((parts, skipped)).encode()).hexdigest()
    return Checkpoint(name, f"/models/{name}.onnx", digest, layers, skipped)


def cut_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer is cut into two parts, as only much larger ones are otherwise."""

    def tiling(spec: LayerSpec, *arguments: Any, **options: Any) -> Tiling:
        return replace(choose_tiling(spec, *arguments, **options), group_outputs=1)

    def parts(spec: LayerSpec, *_: Any) -> tuple[Part, ...]:
        return Part(0, 1), Part(1, spec.output_channels)

    monkeypatch.setattr("farm.tuning.book.choose_tiling", tiling)
    monkeypatch.setattr("farm.jobs.submission.choose_parts", parts)


def fixed_toolchain(nvcc: str = "13.0.88", ptxas: str = "13.0.88") -> Toolchain:
    """Toolchain of given versions: no tool is asked."""
    toolchain = Toolchain(Path("/nowhere/nvcc"), Path("/nowhere/ptxas"))
    known = {"nvcc_version": nvcc, "ptxas_version": ptxas, "archs": ("sm_75", "sm_80", "sm_90", "sm_120")}
    known |= {"cuda_root": Path("/nowhere"), "compiler_digest": "e" * 64}
    vars(toolchain).update(known)
    return toolchain


def clear_code_digests() -> None:
    """Makes this process read the sources of codegen/ again for its next key."""
    keys.code_digest.cache_clear()
    keys._code_in.cache_clear()
