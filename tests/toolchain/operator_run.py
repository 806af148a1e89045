"""Runs small layers in the emulator, among other channels as their launches allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import PRECISIONS, from_float32, to_float32
from codegen.ir.layer_spec import DataType, LayerSpec, Linear, is_bounded
from codegen.model_zoo.pruning import random_bounds
from codegen.ptx.rewrite import Kernel
from codegen.ptx.template import Template
from codegen.verification.compare import is_written, poisoned, random_gate, random_residual
from tests.templates import shared_template
from tests.toolchain.operator_case import Case

BESIDE = (1, 2)
"""Channels of the larger tensor before and after those of the layer."""


def template_of(case: Case) -> Template:
    return shared_template(case.spec, case.tiling, case.virtual_arch)


def run(kernels: Sequence[Kernel], case: Case, x: NDArray[Any]) -> NDArray[Any]:
    """The output of a layer in these kernels, NaN where none of them wrote.

    Convolutions write it among the channels of a larger tensor, and nothing beside them; bounded ones read their input
    from among others, too.
    """
    residual, gate = random_residual(case.spec, case.batch, seed=0), random_gate(case.spec, case.batch, seed=0)
    arguments: dict[str, Any] = {"input": x, "residual": residual, "gate": gate, "images": case.batch}
    if isinstance(case.spec, Linear):
        tensor, own = poisoned(case.spec, case.batch), slice(None)
        arguments["output"] = tensor
    else:
        tensor = poisoned(
            replace(case.spec, output_channels=case.spec.output_channels + sum(BESIDE), groups=1), case.batch
        )
        own = slice(BESIDE[0], BESIDE[0] + case.spec.output_channels)
        arguments["output"] = tensor.reshape(-1)[BESIDE[0] * prod(tensor.shape[2:]) :]
        arguments["output_step"] = prod(tensor.shape[1:])
        if is_bounded(case.spec):
            apart = np.full((len(x), prod(x.shape[1:]) // 4 * 4 + 12), np.nan, x.dtype)
            apart[:, : prod(x.shape[1:])] = x.reshape(len(x), -1)
            arguments["input"], arguments["input_step"] = apart, apart.shape[1]
    for kernel in kernels:
        launch = kernel.launch
        given = [arguments[name] for name in launch.arguments]
        emulate.run(kernel.ptx, launch.grid_at(case.batch), launch.block, launch.shared_bytes, given)
    beside = np.ones(tensor.shape[1], np.bool_)
    beside[own] = False
    assert not is_written(tensor[:, beside]).any()
    return tensor[:, own]


def rounded(values: NDArray[np.float32], data_type: DataType) -> NDArray[np.float32]:
    """To finite values that the data type has."""
    largest = np.float32(PRECISIONS[data_type].largest)
    return to_float32(from_float32(np.clip(values, -largest, largest), data_type), data_type)


def half_of_the_weights(spec: LayerSpec) -> Weights:
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32) * (rng.random(spec.weights_shape) < 0.5)
    bias = rng.standard_normal(spec.output_channels, dtype=np.float32)
    kernel, bias = rounded(kernel.astype(np.float32), spec.data_type), rounded(bias, spec.data_type)
    return Weights(kernel, bias, random_bounds(spec))
