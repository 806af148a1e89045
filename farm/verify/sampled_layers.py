"""Verification of a network of any size without a GPU: blocks of each layer emulated, the rest run by onnxruntime.

Each layer is given what the rest of the network computes from the reference's tensors: no error grows from layer to
layer. Its outputs are compared with the reference's and, within a derived bound, with float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.segments import LayerCall, SegmentedNetwork
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import tensors_of
from codegen.ir.layer_spec import Quantize, plain
from codegen.verification.compare import LayerRun, is_written, poisoned
from codegen.verification.dot_products import gated_input
from codegen.verification.reference import layer_output
from farm.executors.contract import Notice
from farm.jobs.model import Build, JobDetail
from farm.runtime.hybrid import Segments
from farm.store.contract import Store
from farm.verify.layers import best_emulated, verify_run
from farm.verify.onnxruntime_reference import ReferenceTensor
from farm.verify.tensor_checks import TensorCheck, check_tensor

SAMPLED_GROUPS = 8
"""Most K groups to emulate of a layer, whose instruction streams take seconds each; `farm verify` emulates all."""

Array = NDArray[Any]


def check_layers(
    store: Store,
    detail: JobDetail,
    network: SegmentedNetwork,
    inputs: Sequence[Array],
    reference: Mapping[str, ReferenceTensor],
    seed: int,
    notice: Notice,
) -> tuple[list[TensorCheck], list[Array]]:
    """Verifies every layer on sampled blocks; gives their checks, and the outputs of the network.

    Raises UsageError if onnxruntime cannot run the rest of the network, BlobLostError if the store has lost a blob.
    """
    builds: dict[str, list[Build]] = {}
    options = detail.job.options
    batch = options.batch_for(len(inputs[0]))
    for build in detail.builds:
        if any(build.serves(arch, batch, options) for arch in options.archs):
            builds.setdefault(build.layer, []).append(build)
    checks: list[TensorCheck] = []

    def compute(call: LayerCall, arrays: Sequence[Array]) -> Array:
        notice(f"verifying {call.layer}")
        build = best_emulated(builds[call.layer], detail.results)
        layer = _SampledLayer(build, call, arrays, seed)
        check, output = layer.verify(store, detail, reference.get(call.output))
        checks.append(check)
        return output

    specs = {name: each[0].spec for name, each in builds.items()}
    return checks, Segments(network, specs).run(inputs, compute)


class _SampledLayer:
    """A layer and the arrays that it is given."""

    def __init__(self, build: Build, call: LayerCall, arrays: Sequence[Array], seed: int) -> None:
        names = (each for each in tensors_of(build.spec) if each != "output")
        self._given = dict(zip(names, arrays, strict=True))
        self._build = build
        self._call = call
        self._seed = seed

    def verify(self, store: Store, detail: JobDetail, wanted: ReferenceTensor | None) -> tuple[TensorCheck, Array]:
        """The check, and the layer's whole output: the reference's or, where it has no such tensor, float64's."""
        runs: list[LayerRun] = []

        def run_of(weights: Weights) -> LayerRun:
            runs.append(self._run(weights))
            return runs[-1]

        emulated = verify_run(store, self._build, detail.results, run_of)
        run = runs[-1]
        if wanted is None or wanted.values.size != run.output.size:
            wanted = ReferenceTensor(self._exact(run))
        scales = [step.scale for step in self._build.spec.epilogue if isinstance(step, Quantize)]
        check = check_tensor(
            self._call.output,
            self._build.layer,
            run.output,
            wanted,
            is_written(run.output),
            quantized=bool(scales),
            step=max(scales, default=0.0),
        )
        return replace(check, emulated=emulated), wanted.values

    def _run(self, weights: Weights) -> LayerRun:
        spec, x = self._build.spec, self._given["input"]
        output = poisoned(spec, len(x))
        residual, gate = self._given.get("residual"), self._given.get("gate")
        return LayerRun(spec, self._build.tiling, weights, x, output, residual, gate, self._seed, SAMPLED_GROUPS)

    def _exact(self, run: LayerRun) -> Array:
        """The layer's output as float64 arithmetic gives it, in the layer's own type."""
        x = run.x if run.gate is None else gated_input(run.spec, run.x, run.gate)
        with np.errstate(over="ignore"):
            return layer_output(plain(run.spec), run.weights, x, residual=run.residual).astype(run.output.dtype)
