"""A layer's way to the GPU and back: template, kernels, cubins, one run of all parts, compared with the reference."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from codegen.errors import ToolchainError
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import stream_count
from codegen.ptx.rewrite import Kernel, rewrite
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain
from codegen.verification.compare import (
    Verification,
    random_gate,
    random_input,
    random_residual,
    random_run,
    verify_output,
)
from farm.config.settings import Settings
from farm.cuda.device import Device
from farm.testing import laptop_settings
from tests.templates import shared_cubin, shared_template

LIMITS = ToolLimits(300)
LAYER_RUN = "layer run on the GPU"
"""The property under which a test says what it has compared."""


def any_toolchain() -> Toolchain:
    """The pinned one, or else that of a system CUDA. Raises ToolchainError where there is neither."""
    try:
        return find_toolchain()
    except ToolchainError:
        nvcc = shutil.which("nvcc")
        if nvcc is None:
            raise
        return find_toolchain(Path(nvcc).resolve())


def settings_of(folder: Path, toolchain: Toolchain) -> Settings:
    """A farm of the test's own, which compiles a network with all cores."""
    return replace(
        laptop_settings(folder),
        nvcc=toolchain.nvcc,
        ptxas=toolchain.ptxas,
        executor="processes",
        jobs=os.cpu_count() or 1,
    )


def whole(spec: LayerSpec, tiling: Tiling) -> tuple[Part, ...]:
    """The layer as one kernel."""
    return (Part(0, stream_count(spec, tiling)),)


@dataclass(frozen=True)
class Workbench:
    """Runs layers on a GPU; `record` is told of each one compared, in pytest's way of properties."""

    device: Device
    toolchain: Toolchain
    record: Callable[[str, object], None]

    def kernels(
        self, spec: LayerSpec, tiling: Tiling, weights: Weights, parts: Iterable[Part], virtual_arch: str = "compute_80"
    ) -> list[Kernel]:
        template = shared_template(spec, tiling, virtual_arch, self.toolchain)
        return [rewrite(template, weights, part) for part in parts]

    def cubins(self, kernels: Sequence[Kernel]) -> list[tuple[bytes, Launch]]:
        """The kernels in the form that `Device.run_layer` takes."""

        def cubin(kernel: Kernel) -> tuple[bytes, Launch]:
            return shared_cubin(kernel.ptx, self.device.arch, self.toolchain), kernel.launch

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(cubin, kernels))

    def run(self, spec: LayerSpec, cubins: Sequence[tuple[bytes, Launch]], batch: int) -> NDArray[Any]:
        """The output for the inputs that `verify` compares with."""
        x, residual = random_input(spec, batch, seed=batch), random_residual(spec, batch, seed=batch)
        gate = random_gate(spec, batch, seed=batch)
        return self.device.run_layer(cubins, x, spec.output_shape, residual, gate)

    def verify(self, spec: LayerSpec, tiling: Tiling, weights: Weights, output: NDArray[Any]) -> Verification:
        batch = len(output)
        return verify_output(replace(random_run(spec, tiling, weights, batch, seed=batch), output=output))

    def check(
        self,
        spec: LayerSpec,
        tiling: Tiling,
        weights: Weights,
        batch: int,
        virtual_arch: str = "compute_80",
        parts: Iterable[Part] | None = None,
    ) -> Verification:
        """Builds and runs the layer, in one kernel unless parts are given, and compares; records how far it was off."""
        kernels = self.kernels(spec, tiling, weights, whole(spec, tiling) if parts is None else parts, virtual_arch)
        output = self.run(spec, self.cubins(kernels), batch)
        found = self.verify(spec, tiling, weights, output)
        of = {
            "operator": spec.to_json()["operator"],
            "data_type": spec.data_type,
            "sums": tiling.accumulate,
            "kernels": len(kernels),
            "bound_share": found.bound_share,
            "relative_error": found.relative_error,
        }
        self.record(LAYER_RUN, json.dumps(of))
        return found


def summary(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Lines of a table: per operator and data type, how many layers ran and the worst of them."""
    lines = [
        f"{'operator':<18}{'data type':<10}{'sums in':<9}{'layers':>7}{'kernels':>9}"
        f"{'share of bound':>16}{'relative error':>16}"
    ]
    for operator, data_type, sums in sorted({(run["operator"], run["data_type"], run["sums"]) for run in runs}):
        of = [run for run in runs if (run["operator"], run["data_type"], run["sums"]) == (operator, data_type, sums)]
        kernels = sum(run["kernels"] for run in of)
        share, error = (max(run[name] for run in of) for name in ("bound_share", "relative_error"))
        lines.append(f"{operator:<18}{data_type:<10}{sums:<9}{len(of):>7}{kernels:>9}{share:>16.3f}{error:>16.1e}")
    return lines
