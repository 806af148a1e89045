"""Drawn layers as machine code without ptxas: in the emulator of words, bit for bit what their PTX computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.sass import emulate
from codegen.errors import MachineCodeError
from codegen.ir.layer_spec import LayerSpec
from codegen.ir.tiling import Tiling
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.cubin import CubinFile
from codegen.target.arch import virtual_arch
from codegen.toolchain.tools import find_toolchain
from tests.differential.comparison import Agreement, agreement
from tests.differential.drawn_layers import DrawnLayer
from tests.differential.pipeline import DrawnKernel, ours
from tests.templates import shared_template


@dataclass(frozen=True)
class MachineCode:
    """Runs the kernels of layers as direct code of some architectures, and counts the outcomes."""

    archs: Sequence[str]
    equal: Counter[str] = field(default_factory=Counter)
    """Kernels by architecture."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kernels by architecture and reason: ptxas assembles these."""
    different: list[str] = field(default_factory=list)
    """Architecture and layer of each kernel with another output."""

    def agreement(self, layer: DrawnLayer) -> Agreement:
        """The worst agreement of a layer's PTX, one for each virtual architecture, with machine code run beside it.

        Raises AssertionError if the machine code of an architecture computes other bits than its PTX.
        """
        known, virtuals = len(self.different), sorted({virtual_arch(arch) for arch in self.archs})
        seen = [agreement(layer.on(virtual), partial(ours, beside=self.compare)) for virtual in virtuals]
        if wrong := self.different[known:]:
            raise AssertionError(f"other bits than the PTX: {', '.join(wrong)}")
        return max(seen, key=lambda each: each.worst)

    def compare(self, kernel: DrawnKernel, virtual: str, expected: NDArray[Any]) -> None:
        """Runs a kernel's code for each architecture that uses PTX of a virtual one."""
        for arch in self.archs:
            if virtual_arch(arch) == virtual:
                self._compare(kernel, arch, expected)

    def _compare(self, kernel: DrawnKernel, arch: str, expected: NDArray[Any]) -> None:
        output = kernel.arguments["output"].copy()
        arguments = {**kernel.arguments, "output": output}
        launch = kernel.launch
        try:
            made = _assembler(kernel.spec, kernel.tiling, arch).assemble(kernel.weights, kernel.part)
            grid = launch.grid_at(len(arguments["input"]))
            given = [arguments[name] for name in launch.arguments]
            emulate.run(CubinFile.read(made.data), grid, launch.block, launch.shared_bytes, given)
        except MachineCodeError as error:
            self.refused[arch, str(error)] += 1
            return
        unsigned = f"u{output.dtype.itemsize}"
        if np.array_equal(output.view(unsigned), expected.view(unsigned)):
            self.equal[arch] += 1
        else:
            self.different.append(f"{arch} {kernel.spec} {kernel.tiling}")

    def __str__(self) -> str:
        lines = []
        for arch in self.archs:
            reasons = {reason: count for (of, reason), count in self.refused.most_common() if of == arch}
            wrong = sum(each.startswith(f"{arch} ") for each in self.different)
            lines.append(f"{arch}: {self.equal[arch]} equal, {sum(reasons.values())} refused, {wrong} different")
            lines += [f"  {count} refused: {reason}" for reason, count in reasons.items()]
        return "\n".join(lines)


@lru_cache(64)
def _skeleton(spec: LayerSpec, tiling: Tiling, arch: str) -> DirectAssembler | MachineCodeError:
    template = shared_template(spec, tiling, virtual_arch(arch))
    try:
        return DirectAssembler.of(template, make_skeleton(template, arch, find_toolchain()).data, arch)
    except MachineCodeError as error:
        return error


def _assembler(spec: LayerSpec, tiling: Tiling, arch: str) -> DirectAssembler:
    """The assembler of a template, made once. Raises MachineCodeError."""
    made = _skeleton(spec, tiling, arch)
    if isinstance(made, MachineCodeError):
        raise made
    return made
