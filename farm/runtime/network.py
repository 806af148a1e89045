"""A bundle's network on a GPU, with the driver alone: NumPy arrays in and out, or device pointers and a stream."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from farm.bundle.reader import Bundle, Cubin
from farm.bundle.row_groups import group_for, row_groups
from farm.cuda.driver import attribute, call, device_arch, device_handle, device_name, new_event, new_stream
from farm.cuda.module import LoadedPart, Module, launch
from farm.cuda.prefetch import GpuLimits
from farm.errors import UsageError
from farm.runtime.code_prefetch import CodePrefetch
from farm.runtime.glue_kernels import check_arguments
from farm.runtime.plan import KernelStep, LayerStep, Place, Plan, Rows, Step
from farm.runtime.plan_text import plan_of

ALIGNMENT_BYTES = 16
"""Alignment of all pointers."""
BRANCHES = 8
"""Streams on which the parts of a layer run concurrently, at most."""
_MULTIPROCESSORS, _L2_BYTES = 16, 38
"""The driver's attribute numbers."""

Array = NDArray[Any]
See = Callable[[str, Array], None]


def load(path: Path | str, device: int = 0) -> Network:
    """Loads the network of a bundle onto a GPU, without PyTorch. For inference.

    Raises UsageError if the path is not a bundle, if the network has operators that the runtime does not run, or if the
    bundle has no code for the GPU; DeviceError if there is no GPU.
    """
    return Network(Bundle(path), device)


class Network:
    """A network on a GPU. Calls run one at a time."""

    def __init__(self, bundle: Bundle, device: int = 0, plan: Plan | None = None) -> None:
        """`plan` runs some of the bundle's layers; the default is the plan of its whole network."""
        self._bundle = bundle
        self.plan = plan_of(bundle) if plan is None else plan
        self.inputs, self.outputs = self.plan.inputs, self.plan.outputs
        """Ports with name, dtype and shape."""
        self._lock = threading.RLock()
        self._see: See | None = None
        self._buffers: list[int] = []
        self._reserved_images = 0
        self._device = device_handle(device)
        self.arch, self.device_name = device_arch(self._device), device_name(self._device)
        self._closed = False
        self._context = ctypes.c_void_p()
        self._held = ExitStack()
        """Frees the resources, in reverse order of their making."""
        call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        try:
            with self._current():
                self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        bundle = self._bundle
        self._layers: dict[str, Sequence[Sequence[LoadedPart]]] = {}
        """The groups of a layer's kernels, by its name."""
        for name in self.plan.layers:
            cubins = bundle.layers[name].cubins_for(self.arch)
            if not cubins:
                raise UsageError(
                    f"{bundle.path} has code for {', '.join(bundle.archs)}, none of which runs on {self.device_name} "
                    f"({self.arch}): compile the model with --arch {self.arch} and fetch it again. "
                    "With farm fetch --ptx a bundle runs on newer GPUs too"
                )
            self._layers[name] = row_groups(map(self._part, cubins))
        kernels = {step.kernel for step in self.plan.steps if isinstance(step, KernelStep)}
        self._functions = {}
        if kernels:
            glue = Module(bundle.glue)
            self._held.callback(glue.unload)
            self._functions = {name: glue.function(name) for name in sorted(kernels)}
            check_arguments(bundle, self.plan)
        data = bundle.constants if self.plan.constants_bytes else b""
        self._constants = _allocate(len(data))
        self._held.callback(call, "cuMemFree_v2", self._constants)
        _upload(self._constants, data)
        call("cuStreamSynchronize", None)  # other streams do not wait for the copy
        others = min(max((len(parts) for groups in self._layers.values() for parts in groups), default=1), BRANCHES) - 1
        self._others = [new_stream() for _ in range(others)]
        self._begin, *self._ends = (new_event() for _ in range(others + 1))
        for stream in self._others:
            self._held.callback(call, "cuStreamDestroy_v2", stream)
        for event in (self._begin, *self._ends):
            self._held.callback(call, "cuEventDestroy_v2", event)
        gpu = GpuLimits(attribute(_MULTIPROCESSORS, self._device), attribute(_L2_BYTES, self._device))
        steps = [step for step in self.plan.steps if isinstance(step, LayerStep)]
        self._prefetch = CodePrefetch(steps, bundle.layers, self._layers, gpu)
        self._held.callback(self._prefetch.close)
        limits = [step.images_limit for step in self.plan.steps if isinstance(step, KernelStep)]
        limits += [each.launch.images_limit // step.rows for step in steps for each in bundle.layers[step.layer].cubins]
        self._most_images = max(min(limits, default=1) // ALIGNMENT_BYTES * ALIGNMENT_BYTES, 1)

    def _part(self, cubin: Cubin) -> LoadedPart:
        part = LoadedPart(self._bundle.cubin(cubin), cubin.launch, cubin.most_rows)
        self._held.callback(part.module.unload)
        return part

    def __call__(self, *arrays: Array) -> Array | tuple[Array, ...]:
        """The model's outputs for inputs in its order, images first; bfloat16 is held as uint16.

        Arrays are copied to the GPU and back. Raises UsageError for arrays that the model does not take.
        """
        outputs = self.run(arrays)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, arrays: Sequence[Array], see: See | None = None) -> list[Array]:
        """The outputs. `see` is called with every computed tensor's name and its memory's contents, as bytes.

        Raises UsageError for arrays that the model does not take, and with `see` for more images than one pass takes.
        """
        images = self.plan.images_of(arrays)
        if see is not None and images > self._most_images:
            raise UsageError(f"{images} images do not fit in one pass: give at most {self._most_images}")
        outputs = [np.empty(port.shape_of(images), port.held_in) for port in self.outputs]
        if images:
            with self._lock, self._current():
                self._see = see
                try:
                    self._compute([np.ascontiguousarray(each) for each in arrays], outputs, images)
                finally:
                    self._see = None
        return outputs

    def enqueue(self, inputs: Sequence[int], outputs: Sequence[int], images: int, stream: int = 0) -> None:
        """Enqueues the network on a stream, given as its address; `inputs` and `outputs` are device pointers.

        The first call with a number of images allocates buffers, so that later ones can be recorded as a CUDA graph.
        The buffers serve one call at a time: before a call on another stream, wait for the last one, or load the
        bundle twice.
        """
        self._check_images(images)
        if any(each % ALIGNMENT_BYTES for each in (*inputs, *outputs)):
            raise UsageError(f"a pointer is not a multiple of {ALIGNMENT_BYTES} bytes: pass whole tensors")
        with self._lock, self._current():
            self._reserve(min(images, self._most_images))
            for start in range(0, images, self._most_images):
                count = min(self._most_images, images - start)
                given = [each + start * port.image_bytes for each, port in zip(inputs, self.inputs, strict=True)]
                made = [each + start * port.image_bytes for each, port in zip(outputs, self.outputs, strict=True)]
                self._run(given, made, count, stream)
            self._prefetch.end(stream)

    def close(self) -> None:
        """Frees all resources on the GPU."""
        if self._closed:
            return
        self._closed = True
        with self._current():
            call("cuStreamSynchronize", None)
            self._held.close()
            for address in self._buffers:
                call("cuMemFree_v2", address)
        call("cuDevicePrimaryCtxRelease_v2", self._device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _check_images(self, images: int) -> None:
        if images < 1 or self.plan.images not in (None, images):
            raise UsageError(f"the network takes {self.plan.images or 'one or more'} images but is given {images}")

    def _compute(self, arrays: Sequence[Array], outputs: Sequence[Array], images: int) -> None:
        addresses: list[int] = []
        try:
            addresses.extend(_allocate(array.nbytes) for array in (*arrays, *outputs))
            for address, array in zip(addresses, arrays, strict=False):
                _upload(address, array)
            given, made = addresses[: len(arrays)], addresses[len(arrays) :]
            self.enqueue(given, made, images)
            for address, array in zip(made, outputs, strict=True):
                call("cuMemcpyDtoH_v2", array.ctypes.data, address, array.nbytes)
        finally:
            for address in addresses:
                call("cuMemFree_v2", address)

    def _reserve(self, images: int) -> None:
        if images <= self._reserved_images:
            return
        call("cuStreamSynchronize", None)
        while self._buffers:
            call("cuMemFree_v2", self._buffers.pop())
        self._reserved_images = 0
        self._buffers += [_allocate(count * images) for count in self.plan.buffers]
        self._reserved_images = images

    def _run(self, inputs: Sequence[int], outputs: Sequence[int], images: int, stream: int) -> None:
        def address(place: Place) -> int:
            match place.kind:
                case "input":
                    return inputs[place.number]
                case "output":
                    return outputs[place.number]
                case "buffer":
                    return self._buffers[place.number]
                case "constant":
                    return self._constants + place.number

        layers = itertools.count()
        for step in self.plan.steps:
            if isinstance(step, LayerStep):
                self._prefetch.before(next(layers), images, stream)
                parts = group_for(self._layers[step.layer], step.rows * images)
                addresses = dict(zip(parts[0].launch.tensors, map(address, step.places), strict=True))
                self._run_layer(parts, addresses, step.rows * images, stream)
                self._show(step, address(step.output), images)
                continue
            values: list[Any] = []
            for each in step.arguments:
                match each:
                    case Place():
                        values.append(ctypes.c_uint64(address(each)))
                    case Rows():
                        values.append(ctypes.c_int32(step.rows * images))
                    case int():
                        values.append(ctypes.c_int32(each))
                    case float():
                        values.append(ctypes.c_float(each))
            grid = [size.at(step.rows * images) for size in step.grid]
            launch(self._functions[step.kernel], grid, (step.threads, 1, 1), 0, values, stream)
            self._show(step, address(step.output), images)

    def _show(self, step: Step, address: int, images: int) -> None:
        """Shows `see` the output of a step that was enqueued on the default stream."""
        if self._see is None:
            return
        sizes = self.plan.buffers if step.output.kind == "buffer" else [each.image_bytes for each in self.outputs]
        data = np.empty(sizes[step.output.number] * images, np.uint8)
        call("cuStreamSynchronize", None)
        call("cuMemcpyDtoH_v2", data.ctypes.data, address, data.nbytes)
        self._see(step.tensor, data)

    def _run_layer(self, parts: Sequence[LoadedPart], addresses: Mapping[str, int], rows: int, stream: int) -> None:
        """Launches the parts of a layer concurrently, after the stream's earlier work and before its later work."""
        others = list(zip(self._others, self._ends, strict=True))[: len(parts) - 1]
        if others:
            call("cuEventRecord", self._begin, stream)
        for other, _ in others:
            call("cuStreamWaitEvent", other, self._begin, 0)
        streams = [stream, *(other.value or 0 for other, _ in others)]
        for i, part in enumerate(parts):
            part.enqueue({**addresses, **part.launch.numbers(rows)}, streams[i % len(streams)])
        for other, end in others:
            call("cuEventRecord", end, other)
            call("cuStreamWaitEvent", stream, end, 0)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the GPU's primary context current, which other libraries of the process use too."""
        call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def _allocate(count_bytes: int) -> int:
    address = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(address), max(count_bytes, ALIGNMENT_BYTES))
    return address.value


def _upload(address: int, data: bytes | Array) -> None:
    array = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    if array.nbytes:
        call("cuMemcpyHtoD_v2", address, array.ctypes.data, array.nbytes)
