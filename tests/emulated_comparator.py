"""Qualification without a GPU: the SASS emulator runs both cubins of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from codegen.emulator.sass.emulate import run
from codegen.ir.layer_spec import (
    DataType,
)
from codegen.sass.cubin import CubinFile
from codegen.verification.compare import poisoned, random_gate, random_residual
from farm.qualification.build import BuiltShape, Kernels, LayerPair
from farm.qualification.comparator import Comparison, count_differing
from farm.qualification.corpus import (
    LAYERS_PER_SHAPE,
    Shape,
)
from farm.qualification.qualify import (
    QualificationPlan,
    ShapeResult,
    Started,
    compare_shapes,
)


class EmulatedComparator:
    """Runs machine code on the CPU."""

    name, arch, driver = "NVIDIA Made-Up", "sm_90", "13.0"

    def compare(self, shape: Shape, layers: Sequence[LayerPair]) -> Iterator[Comparison]:
        for layer in layers:
            by_ptxas, direct = (self._output(shape, kernels) for kernels in (layer.ptxas, layer.direct))
            yield Comparison(layer.variant, by_ptxas.size, count_differing(by_ptxas, direct))

    def _output(self, shape: Shape, kernels: Kernels) -> NDArray[Any]:
        output = poisoned(shape.spec, shape.batch)
        arrays = {
            "input": shape.input(),
            "output": output,
            "residual": random_residual(shape.spec, shape.batch, shape.number),
            "gate": random_gate(shape.spec, shape.batch, shape.number),
        }
        for cubin, launch in kernels:
            given: dict[str, Any] = {**arrays, **launch.numbers(shape.batch)}
            arguments = [given[name] for name in launch.arguments]
            grid = launch.grid_at(shape.batch)
            run(CubinFile.read(cubin), grid, launch.block, launch.shared_bytes, arguments)
        return output


class FixedBuilder:
    """Returns one prepared shape for every number."""

    def __init__(self, built: BuiltShape) -> None:
        self.built = built
        self.asked: list[tuple[int, int]] = []

    def submit(self, number: int, data_type: DataType, variants: int = LAYERS_PER_SHAPE) -> Future[BuiltShape]:
        self.asked.append((number, variants))
        future: Future[BuiltShape] = Future()
        future.set_result(replace(self.built, data_type=data_type))
        return future


def result_of(built: BuiltShape, comparator: EmulatedComparator | None = None) -> ShapeResult:
    gpu, plan = comparator or EmulatedComparator(), QualificationPlan(layers=1)
    events = list(compare_shapes(gpu, FixedBuilder(built), plan, "13.0", ahead=1))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], ShapeResult)
    return events[-1]
