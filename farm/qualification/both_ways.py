"""Both ways: the layers of a shape by ptxas and assembled directly, made in a process of its own."""

from __future__ import annotations

import os
import re
import traceback
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from types import TracebackType
from typing import Self

from codegen.errors import CodegenError, MachineCodeError
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import DataType
from codegen.ir.tiling import Part
from codegen.kernels import launch_of
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.qualification import ADMITTED_LEVEL
from codegen.selection.choose import choose_parts
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble, ptxas_options, skeleton_options
from codegen.toolchain.tools import Toolchain, ToolLimits
from farm.executors.subprocess_start import end_with
from farm.qualification.corpus import LAYERS_OF_SHAPE, Shape, drawn_shape

Kernels = tuple[tuple[bytes, Launch], ...]
"""Cubin and launch of each part of a layer, or of the whole."""


@dataclass(frozen=True)
class MadeLayer:
    """A layer's kernels, made both ways."""

    variant: int
    ptxas: Kernels
    direct: Kernels


@dataclass(frozen=True)
class MadeShape:
    """What became of a shape's layers."""

    number: int
    data_type: DataType
    shape: Shape | None = None
    """None: no tiling fits it."""
    layers: tuple[MadeLayer, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    """Layers that were left to ptxas, by reason."""
    broken: tuple[str, ...] = ()
    """Layers at which the assembler broke, which it never may: it does a layer, or refuses it."""
    failed: tuple[str, ...] = ()
    """Layers that nvcc or ptxas did not make, which says nothing of the assembler."""
    ptxas_seconds: float = 0.0
    direct_seconds: float = 0.0


def make_both(
    number: int, data_type: DataType, variants: int, arch: str, toolchain: Toolchain, limits: ToolLimits
) -> MadeShape:
    """The first `variants` layers of a shape."""
    shape = drawn_shape(number, data_type)
    if shape is None:
        return MadeShape(number, data_type)
    clusters = shape.tiling.cluster > 1
    options = ptxas_options(ADMITTED_LEVEL, clusters=clusters)
    try:
        virtual = virtual_arch(arch, clusters=clusters)
        template = make_template(shape.spec, shape.tiling, virtual, toolchain, limits)
        skeleton = make_skeleton(template, arch, toolchain, skeleton_options(options, clusters=clusters), limits)
        assembler = DirectAssembler.of(template, skeleton.data, arch)
    except MachineCodeError as error:
        return MadeShape(number, data_type, shape, refused=Counter({_reason(error): variants}))
    except CodegenError as error:
        return MadeShape(number, data_type, shape, failed=(f"{shape.name}: {error}",))
    except Exception:  # noqa: BLE001 - whatever it is, a job would have crashed
        return MadeShape(number, data_type, shape, broken=(f"{shape.name}: {traceback.format_exc()}",))
    layers: list[MadeLayer] = []
    refused: Counter[str] = Counter()
    broken, failed = [], []
    ptxas_seconds = direct_seconds = 0.0
    for variant in range(variants):
        name, weights = shape.layer_name(variant), shape.weights(variant)
        parts = choose_parts(shape.spec, shape.tiling, weights.nonzeros_per_output)
        whole = Part(0, parts[-1].end)
        try:
            direct = assembler.assemble(weights, whole)
        except MachineCodeError as error:
            refused[_reason(error)] += 1
            continue
        except Exception:  # noqa: BLE001 - as above
            broken.append(f"{name}: {traceback.format_exc()}")
            continue
        try:
            kernels = [rewrite(template, weights, part) for part in parts]
            by_ptxas = [assemble(kernel.ptx, arch, toolchain, options, limits) for kernel in kernels]
        except CodegenError as error:
            failed.append(f"{name}: {error}")
            continue
        launches = [kernel.launch for kernel in kernels]
        layers.append(
            MadeLayer(
                variant,
                tuple((cubin.data, launch) for cubin, launch in zip(by_ptxas, launches, strict=True)),
                ((direct.data, launch_of(shape.spec, shape.tiling, whole)),),
            )
        )
        ptxas_seconds += sum(cubin.seconds for cubin in by_ptxas)
        direct_seconds += direct.seconds
    return MadeShape(
        number, data_type, shape, tuple(layers), refused, tuple(broken), tuple(failed), ptxas_seconds, direct_seconds
    )


def _reason(error: MachineCodeError) -> str:
    """Without the word's number, so that reasons can be counted."""
    return re.sub(r"^word \d+ has", "a word has", str(error))


class Makers:
    """Processes that make shapes, as many as the settings' jobs. Use it in a `with` block: after it they are gone."""

    def __init__(self, processes: int, arch: str, toolchain: Toolchain, limits: ToolLimits) -> None:
        # A process that is forked from one with a GPU may hang.
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"), end_with, (os.getpid(),))
        self._arch, self._toolchain, self._limits = arch, toolchain, limits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = list((self._pool._processes or {}).values())  # the pool itself would wait for what they do
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()

    def begin(self, number: int, data_type: DataType, variants: int = LAYERS_OF_SHAPE) -> Future[MadeShape]:
        """A shape that is to be made."""
        return self._pool.submit(make_both, number, data_type, variants, self._arch, self._toolchain, self._limits)
