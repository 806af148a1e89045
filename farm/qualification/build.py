"""Builds each layer of a shape twice, with ptxas and with the direct assembler, in worker processes."""

from __future__ import annotations

import os
import traceback
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Self

from codegen.errors import CodegenError, MachineCodeError, without_places
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import DataType
from codegen.ir.tiling import Part
from codegen.kernels import launch_of, needs_clusters
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.qualification import QUALIFIED_LEVEL
from codegen.selection.choose import choose_parts
from codegen.target.arch import has_clusters, virtual_arch
from codegen.toolchain.ptxas import assemble, ptxas_options, skeleton_options
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.executors.processes import end_with_parent
from farm.qualification.corpus import LAYERS_PER_SHAPE, Shape, draw_shape

Kernels = tuple[tuple[bytes, Launch], ...]
"""Cubin and launch of each part of a layer."""


@dataclass(frozen=True)
class LayerPair:
    """Both builds of a layer."""

    variant: int
    ptxas: Kernels
    direct: Kernels


@dataclass(frozen=True)
class BuiltShape:
    """Builds of a shape's layers, and why others have none."""

    shape: Shape | None = None
    """None if no tiling fits it."""
    layers: tuple[LayerPair, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    """Number of layers that the assembler left to ptxas, by reason."""
    crashed: tuple[str, ...] = ()
    """Layers on which the assembler raised anything but MachineCodeError, with the traceback: always a bug."""
    not_built: tuple[str, ...] = ()
    """Layers that nvcc or ptxas failed to build, with the error; no fault of the assembler."""
    ptxas_seconds: float = 0.0
    direct_seconds: float = 0.0


def build_shape(
    number: int, data_type: DataType, variants: int, arch: str, toolchain: Toolchain, limits: ToolLimits
) -> BuiltShape:
    """Builds the first `variants` layers of a shape with both assemblers."""
    shape = draw_shape(number, data_type, clusters=has_clusters(arch))
    if shape is None:
        return BuiltShape()
    clusters = shape.tiling.cluster > 1
    options = ptxas_options(QUALIFIED_LEVEL, clusters=clusters)
    try:
        virtual = virtual_arch(arch, clusters=needs_clusters(shape.tiling))
        template = make_template(shape.spec, shape.tiling, virtual, toolchain, limits)
        skeleton = make_skeleton(template, arch, toolchain, skeleton_options(options, clusters=clusters), limits)
        assembler = DirectAssembler.of(template, skeleton.data, arch)
    except MachineCodeError as error:
        return BuiltShape(shape, refused=Counter({without_places(str(error)): variants}))
    except CodegenError as error:
        return BuiltShape(shape, not_built=(f"{shape.name}: {error}",))
    except Exception:  # noqa: BLE001 - any of them would crash a job
        return BuiltShape(shape, crashed=(f"{shape.name}: {traceback.format_exc()}",))
    layers: list[LayerPair] = []
    refused: Counter[str] = Counter()
    crashed, not_built = [], []
    ptxas_seconds = direct_seconds = 0.0
    for variant in range(variants):
        name, weights = shape.layer_name(variant), shape.weights(variant)
        parts = choose_parts(shape.spec, shape.tiling, weights.nonzeros_per_output)
        whole = Part(0, parts[-1].end)
        try:
            direct = assembler.assemble(weights, whole)
        except MachineCodeError as error:
            refused[without_places(str(error))] += 1
            continue
        except Exception:  # noqa: BLE001 - any of them would crash a job
            crashed.append(f"{name}: {traceback.format_exc()}")
            continue
        try:
            kernels = [rewrite(template, weights, part) for part in parts]
            by_ptxas = [assemble(kernel.ptx, arch, toolchain, options, limits) for kernel in kernels]
        except CodegenError as error:
            not_built.append(f"{name}: {error}")
            continue
        launches = [kernel.launch for kernel in kernels]
        layers.append(
            LayerPair(
                variant,
                tuple((cubin.data, launch) for cubin, launch in zip(by_ptxas, launches, strict=True)),
                ((direct.data, launch_of(shape.spec, shape.tiling, whole)),),
            )
        )
        ptxas_seconds += sum(cubin.seconds for cubin in by_ptxas)
        direct_seconds += direct.seconds
    return BuiltShape(
        shape,
        layers=tuple(layers),
        refused=refused,
        crashed=tuple(crashed),
        not_built=tuple(not_built),
        ptxas_seconds=ptxas_seconds,
        direct_seconds=direct_seconds,
    )


class BuildPool:
    """Processes that build shapes; used in a `with` block, which ends by terminating them."""

    def __init__(self, processes: int, arch: str, toolchain: Toolchain, limits: ToolLimits) -> None:
        # Spawned: a process forked from one with a CUDA context may hang.
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"), end_with_parent, (os.getpid(),))
        self._arch, self._toolchain, self._limits = arch, toolchain, limits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        processes = list((self._pool._processes or {}).values())  # shutdown would wait for running builds
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()

    def submit(self, number: int, data_type: DataType, variants: int = LAYERS_PER_SHAPE) -> Future[BuiltShape]:
        """Queues the build of a shape."""
        return self._pool.submit(build_shape, number, data_type, variants, self._arch, self._toolchain, self._limits)
