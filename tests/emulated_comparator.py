"""Qualification without a GPU: the SASS emulator runs both cubins of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.sass.emulate import run
from codegen.ir.dtypes import to_float32
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import DataType
from codegen.sass.cubin import CubinFile
from codegen.verification.compare import is_written, poisoned, random_gate, random_residual
from farm.qualification.build import BuiltShape, Kernels, LayerPair
from farm.qualification.comparator import Comparison, count_differing
from farm.qualification.corpus import LAYERS_PER_SHAPE, Shape
from farm.qualification.qualify import QualificationPlan, ShapeResult, Started, compare_shapes

ONE_NAN = -2
"""Bits of a NaN of any type that is not the poison of unwritten outputs."""


class EmulatedComparator:
    """Runs machine code on the CPU."""

    name, arch, driver = "NVIDIA Made-Up", "sm_90", "13.0"

    def compare(self, shape: Shape, layers: Sequence[LayerPair]) -> Iterator[Comparison]:
        for layer in layers:
            by_ptxas, direct = (self._output(shape, kernels) for kernels in (layer.ptxas, layer.direct))
            yield Comparison(by_ptxas.size, differing(shape, by_ptxas, direct))

    def _output(self, shape: Shape, kernels: Kernels) -> NDArray[Any]:
        output = poisoned(shape.spec, shape.batch)
        for cubin, launch in kernels:
            given = arguments_of(shape, launch, output)
            run(CubinFile.read(cubin), launch.grid_at(shape.batch), launch.block, launch.shared_bytes, given)
        return output


def differing(shape: Shape, first: NDArray[Any], second: NDArray[Any]) -> int:
    """Number of outputs whose bits differ or that were not written; a GPU has one NaN where NumPy has many."""
    first, second = first.copy(), second.copy()
    for output in (first, second):
        is_nan = np.isnan(to_float32(output, shape.spec.data_type)) & is_written(output)
        output.view(f"i{output.dtype.itemsize}")[is_nan] = ONE_NAN
    return count_differing(first, second)


def arguments_of(shape: Shape, launch: Launch, output: NDArray[Any]) -> list[Any]:
    """The arguments of a launch that computes the shape's output on its input."""
    named: dict[str, Any] = {
        "input": shape.input(),
        "output": output,
        "residual": random_residual(shape.spec, shape.batch, shape.number),
        "gate": random_gate(shape.spec, shape.batch, shape.number),
        **launch.numbers(shape.batch),
    }
    return [named[name] for name in launch.arguments]


class FixedBuilder:
    """Returns one prepared shape for every number."""

    def __init__(self, built: BuiltShape) -> None:
        self.built = built
        self.asked: list[tuple[int, int]] = []

    def submit(self, number: int, data_type: DataType, variants: int = LAYERS_PER_SHAPE) -> Future[BuiltShape]:
        self.asked.append((number, variants))
        future: Future[BuiltShape] = Future()
        future.set_result(self.built)
        return future


def result_of(built: BuiltShape, comparator: EmulatedComparator | None = None) -> ShapeResult:
    gpu, plan = comparator or EmulatedComparator(), QualificationPlan(layers=1)
    events = list(compare_shapes(gpu, FixedBuilder(built), plan, "13.0", ahead=1))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], ShapeResult)
    return events[-1]
