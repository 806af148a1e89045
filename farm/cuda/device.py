"""A GPU through PyCUDA: loads cubins, launches them, times launches, copies data. The only importer of PyCUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codegen.errors import DeviceError
from codegen.ir.launch import Launch
from farm.cuda.code_address import VARIABLE, with_address
from farm.cuda.graph import REPLAYS, CudaGraph, Gate, cool_down, launches_of
from farm.cuda.module import GIVEN_SHARED_BYTES, CodeRange
from farm.extras import way_out

_POISON = 0xFF
"""Byte of which every data type makes a NaN, so that an output that no kernel writes is recognised."""

BRANCHES = 16
"""Most streams on which the parts of a layer run in parallel; the GPU has room for blocks of a few kernels."""
GUESSED_LAUNCHES = 16
"""Launches that are timed first, to choose the number of launches in a graph."""
IDLE_SECONDS = 1.0
"""Idle time after which a GPU may have lowered its clock."""
WAKE_SECONDS = 0.7
"""Time that an idle GPU must work until its clock is up."""
WAKE_BYTES = 2**26
"""Memory that is written to wake the GPU."""


@dataclass(frozen=True)
class DeviceFacts:
    """Properties of a GPU."""

    name: str
    arch: str
    """Architecture, as in sm_90."""
    capability: int
    """Compute capability times ten: 90 for 9.0."""
    driver: str
    """Newest CUDA version that the driver supports."""
    multiprocessors: int
    clock_hz: float
    """Largest clock of the multiprocessors."""
    memory_clock_hz: float
    """Largest clock of the memory."""
    bus_bits: int
    l2_bytes: int
    memory_bytes: int
    pci_bus: str
    """PCI address, as nvidia-smi takes it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel loaded on the GPU; a call launches it with device addresses, `others` by the names of the launch."""

    _function: Any
    _launch: Launch
    code: CodeRange | None = None
    """Address of its code, if it was loaded with `addressed`."""

    def __call__(self, source: int, target: int, batch: int, stream: Any = None, **others: int | None) -> None:
        values = {"input": source, "output": target} | {name: each or 0 for name, each in others.items()}
        numbers = self._launch.numbers(batch)
        arguments = [
            np.int32(numbers[name]) if name in numbers else np.uint64(values[name]) for name in self._launch.arguments
        ]
        self._function(
            *arguments,
            grid=self._launch.grid_at(batch),
            block=self._launch.block,
            shared=self._launch.shared_bytes,
            stream=stream,
        )


class LoadedLayer:
    """All parts of a layer loaded on the GPU; a call launches them in parallel, since they write different outputs.

    On the stream they act as one launch. In a captured graph they become parallel branches.
    """

    def __init__(
        self, kernels: Sequence[LoadedKernel], stream: Any, others: Sequence[Any], events: Sequence[Any]
    ) -> None:
        """`others` are streams for the parts after the first, in turn; `events` has one more than `others`."""
        self._kernels = tuple(kernels)
        self._stream = stream
        self._others = tuple(others)
        self._begin, *self._ends = events

    @property
    def codes(self) -> tuple[CodeRange, ...]:
        """Address ranges of the parts' code, without parts whose address is unknown."""
        return tuple(kernel.code for kernel in self._kernels if kernel.code is not None)

    def __call__(self, source: int, target: int, batch: int, residual: int | None = None) -> None:
        """Launch all parts with device addresses."""
        if self._others:
            self._begin.record(self._stream)
            for other in self._others:
                other.wait_for_event(self._begin)
        streams = (self._stream, *self._others)
        for i, kernel in enumerate(self._kernels):
            kernel(source, target, batch, streams[i % len(streams)], residual=residual)
        for other, end in zip(self._others, self._ends, strict=True):
            end.record(other)
            self._stream.wait_for_event(end)


@dataclass(frozen=True)
class RawKernel:
    """A loaded kernel not made from a template; its arguments are pointers and, if it has one, an int32 image count."""

    _function: Any
    block: tuple[int, int, int]

    def __call__(
        self, grid: tuple[int, int, int], pointers: Sequence[int], images: int | None, stream: Any = None
    ) -> None:
        arguments = [*map(np.uint64, pointers), *([] if images is None else [np.int32(images)])]
        self._function(*arguments, grid=grid, block=self.block, stream=stream)


def _missing(error: ImportError) -> str:
    """The way out if PyCUDA cannot be imported."""
    if isinstance(error, ModuleNotFoundError):
        return way_out("gpu")
    return "libcuda.so.1 comes with NVIDIA's driver, so run this on a machine with a GPU"


class Device:
    """The first GPU, current within a `with` block. Raises DeviceError if there is none."""

    def __init__(self) -> None:
        try:
            from pycuda import driver
        except ImportError as error:
            raise DeviceError(f"PyCUDA cannot be imported ({error}): {_missing(error)}") from None
        self._driver: Any = driver
        self._streams: list[Any] = []
        """Streams for the parts of a layer after the first."""
        self._awake_at = -IDLE_SECONDS
        """Time at which its clock was last known to be up."""
        try:
            driver.init()
            self._device = driver.Device(0)
            self._context = self._device.retain_primary_context()
        except driver.Error as error:
            raise DeviceError(f"no usable GPU ({error}): run this on a machine with a GPU") from None

    def __enter__(self) -> Self:
        self._context.push()
        return self

    def __exit__(self, *_error: object) -> None:
        self._context.pop()

    @property
    def name(self) -> str:
        return str(self._device.name())

    @property
    def failure(self) -> type[Exception]:
        """Exception type of PyCUDA, which methods raise that do not document DeviceError."""
        kind: type[Exception] = self._driver.Error
        return kind

    @property
    def arch(self) -> str:
        """Architecture of its cubins, as in sm_90."""
        major, minor = self._device.compute_capability()
        return f"sm_{major}{minor}"

    @property
    def facts(self) -> DeviceFacts:
        """Properties of the GPU."""
        kind = self._driver.device_attribute
        major, minor = self._device.compute_capability()
        version = self._driver.get_driver_version()

        def number(attribute: Any) -> int:
            return int(self._device.get_attribute(attribute))

        return DeviceFacts(
            name=self.name,
            arch=self.arch,
            capability=10 * major + minor,
            driver=f"{version // 1000}.{version % 1000 // 10}",
            multiprocessors=number(kind.MULTIPROCESSOR_COUNT),
            clock_hz=1e3 * number(kind.CLOCK_RATE),
            memory_clock_hz=1e3 * number(kind.MEMORY_CLOCK_RATE),
            bus_bits=number(kind.GLOBAL_MEMORY_BUS_WIDTH),
            l2_bytes=number(kind.L2_CACHE_SIZE),
            memory_bytes=int(self._device.total_memory()),
            pci_bus=str(self._device.pci_bus_id()),
        )

    def allocate(self, size_bytes: int) -> Any:
        """Allocate GPU memory; `int()` of the result is its address, its `free()` releases it. Raises DeviceError."""
        try:
            return self._driver.mem_alloc(size_bytes)
        except self._driver.Error as error:
            raise DeviceError(
                f"{self.name} has no {size_bytes / 1e9:.1f} GB left ({error}): use a smaller batch"
            ) from None

    def upload(self, address: int, values: NDArray[Any]) -> None:
        """Copy an array to a device address."""
        self._driver.memcpy_htod(address, np.ascontiguousarray(values))

    def copy(self, source: int, target: int, size_bytes: int) -> None:
        """Copy between device addresses."""
        self._driver.memcpy_dtod(target, source, size_bytes)

    def poison(self, address: int, size_bytes: int) -> None:
        """Fill memory with NaN of any data type."""
        self._driver.memset_d8(address, _POISON, size_bytes)

    def fill(self, address: int, size_bytes: int, stream: Any) -> None:
        """Enqueue the filling of memory with zeros."""
        self._driver.memset_d8_async(address, 0, size_bytes, stream)

    def host_array(self, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        """A NumPy array in page-locked memory, to which copies are several times as fast. Raises DeviceError."""
        try:
            array: NDArray[Any] = self._driver.pagelocked_empty(shape, kind)
        except self._driver.Error as error:
            raise DeviceError(f"no page-locked memory left ({error}): use a smaller batch") from None
        return array

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Wait for all launches, then copy from a device address to an array. Raises DeviceError if a launch failed."""
        try:
            self._driver.Context.synchronize()
            self._driver.memcpy_dtoh(values, address)
        except self._driver.Error as error:
            raise DeviceError(f"a kernel did not run on {self.name}: {error}") from None

    def raw_kernel(self, cubin: bytes, entry: str, block: tuple[int, int, int]) -> RawKernel:
        """Load a kernel not made from a template."""
        return RawKernel(self._driver.module_from_buffer(cubin).get_function(entry), block)

    def wake(self) -> None:
        """Keep an idle GPU busy until its clock is up, because kernels timed before that take far longer."""
        start = time.monotonic()
        if start - self._awake_at >= IDLE_SECONDS:
            memory = self.allocate(WAKE_BYTES)
            while time.monotonic() - start < WAKE_SECONDS:
                self._driver.memset_d8(int(memory), 0, WAKE_BYTES)
                self._driver.Context.synchronize()
            memory.free()
        self._awake_at = time.monotonic()

    def microseconds(self, launch: Callable[[int], None], sets: int, stream: Any, repeats: int = REPLAYS) -> float:
        """Median time of one launch, from replays of a CUDA graph of many launches.

        `launch(i)` launches on `stream` with data set i, 0 <= i < `sets`; the sets are used in turn. Raises
        DeviceError.
        """

        def run(launches: int) -> None:
            for i in range(launches):
                launch(i % sets)

        some = min(sets, GUESSED_LAUNCHES)
        self.wake()
        try:
            run(some)  # loads the code, which may make the driver wait
            stream.synchronize()
            gate = self.gate(stream)
            guess = max(1.0, self.elapsed_microseconds(stream, gate, lambda: run(some)) / some)
            launches = launches_of(guess, sets)
            with CudaGraph(stream.handle, lambda: run(launches)) as graph:
                graph.replay()
                times = []
                for _ in range(repeats):
                    times.append(self.elapsed_microseconds(stream, gate, graph.replay))
                    cool_down(times[-1])
        except self._driver.Error as error:
            raise DeviceError(f"a kernel did not run on {self.name}: {error}") from None
        return float(np.median(times)) / launches

    def gate(self, stream: Any) -> Gate:
        """A gate for timing the work of a stream."""
        flag = self._driver.pagelocked_empty(1, np.uint32, mem_flags=self._driver.host_alloc_flags.DEVICEMAP)
        return Gate(stream.handle, flag, int(flag.base.get_device_pointer()))

    def elapsed_microseconds(self, stream: Any, gate: Gate, enqueue: Callable[[], None]) -> float:
        """Time of the GPU for the work that a function enqueues; waits for its end."""
        begin, end = self._driver.Event(), self._driver.Event()
        with gate.closed():
            begin.record(stream)
            enqueue()
            end.record(stream)
        end.synchronize()
        return float(begin.time_till(end)) * 1e3

    def new_stream(self) -> Any:
        """A PyCUDA stream; its `handle` is for other libraries."""
        return self._driver.Stream()

    def load(self, cubin: bytes, launch: Launch, *, addressed: bool = False) -> LoadedKernel:
        """Load a cubin for repeated launches; `addressed` records the address of its code, if the driver reports it."""
        found = with_address(cubin) if addressed else None
        try:
            module = self._driver.module_from_buffer(cubin if found is None else found[0])
            function = module.get_function(launch.kernel)
            if launch.shared_bytes > GIVEN_SHARED_BYTES:
                most = self._driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.set_attribute(most, launch.shared_bytes)
            return LoadedKernel(function, launch, None if found is None else self._code(module, found[1]))
        except self._driver.Error as error:
            raise DeviceError(
                f"the cubin of {launch.kernel} does not load on {self.name} ({self.arch}): {error}"
            ) from None

    def _code(self, module: Any, size_bytes: int) -> CodeRange | None:
        address = np.zeros(1, np.uint64)
        self._driver.memcpy_dtoh(address, module.get_global(VARIABLE)[0])
        return CodeRange(int(address[0]), size_bytes) if address[0] else None

    def load_layer(
        self, kernels: Sequence[tuple[bytes, Launch]], stream: Any, *, addressed: bool = False
    ) -> LoadedLayer:
        """Load all parts of a layer for repeated launches on a stream; see `load`. Raises DeviceError."""
        loaded = [self.load(cubin, launch, addressed=addressed) for cubin, launch in kernels]
        others = min(len(loaded), BRANCHES) - 1
        while len(self._streams) < others:
            self._streams.append(self.new_stream())
        kind = self._driver.event_flags.DISABLE_TIMING
        return LoadedLayer(
            loaded, stream, self._streams[:others], [self._driver.Event(kind) for _ in range(others + 1)]
        )

    def run_layer(
        self,
        kernels: Sequence[tuple[bytes, Launch]],
        x: NDArray[Any],
        output_shape: tuple[int, ...],
        residual: NDArray[Any] | None = None,
        gate: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Run all parts of a layer on a batch [N, ...]; returns the output, NaN where no kernel wrote."""
        driver = self._driver
        loaded = [self.load(cubin, launch) for cubin, launch in kernels]
        output = np.empty((len(x), *output_shape), dtype=x.dtype)
        try:
            target = driver.mem_alloc(output.nbytes)
            driver.memset_d8(target, _POISON, output.nbytes)
            given = [each if each is None else self._uploaded(each) for each in (x, residual, gate)]
            source, added, factors = (0 if each is None else int(each) for each in given)
            for kernel in loaded:
                kernel(source, int(target), len(x), residual=added, gate=factors)
            driver.Context.synchronize()
            driver.memcpy_dtoh(output, target)
        except driver.Error as error:
            raise DeviceError(f"{kernels[0][1].kernel} did not run on {self.name}: {error}") from None
        return output

    def _uploaded(self, array: NDArray[Any]) -> Any:
        memory = self._driver.mem_alloc(array.nbytes)
        self._driver.memcpy_htod(memory, np.ascontiguousarray(array))
        return memory
