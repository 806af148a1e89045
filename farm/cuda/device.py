"""A GPU: loads a cubin, launches it, gives the output back. The only importer of PyCUDA."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
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
"""A NaN of such bytes in every data type: an output that no kernel writes stays one."""

BRANCHES = 16
"""Parts of a layer that are launched beside each other: the GPU has room for blocks of a few kernels at a time."""
GUESSED_LAUNCHES = 16
"""From which it is guessed how many launches a graph should have."""
IDLE_SECONDS = 1.0
"""After which a GPU may have lowered its clock."""
WAKE_SECONDS = 0.7
"""How long an idle GPU must work until its clock is up."""
WAKE_BYTES = 2**26


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
    """A kernel on the GPU: call it with addresses, of `others` by the launch's names, on a stream or the default."""

    _function: Any
    _launch: Launch
    code: CodeRange | None = None
    """Where it lies, if somebody asked for it."""

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
    """All parts of a layer on the GPU: a call launches them side by side, since each writes outputs of its own.

    To the stream it is one launch: it begins after what the stream has, and what follows waits for all parts. It can
    be captured into a graph, whose branches the parts are then.
    """

    def __init__(
        self, kernels: Sequence[LoadedKernel], stream: Any, others: Sequence[Any], events: Sequence[Any]
    ) -> None:
        """`others` are streams for the parts after the first, in turn; `events` one for each of them and one more."""
        self._kernels = tuple(kernels)
        self._stream = stream
        self._others = tuple(others)
        self._begin, *self._ends = events

    @property
    def codes(self) -> tuple[CodeRange, ...]:
        """Of the parts whose code lies nobody knows where, none."""
        return tuple(kernel.code for kernel in self._kernels if kernel.code is not None)

    def __call__(self, source: int, target: int, batch: int, residual: int | None = None) -> None:
        """Launches all parts with these device addresses."""
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
    """A kernel that no template made: its arguments are pointers, then an int32 number of images where it takes one."""

    _function: Any
    block: tuple[int, int, int]

    def __call__(
        self, grid: tuple[int, int, int], pointers: Sequence[int], images: int | None, stream: Any = None
    ) -> None:
        arguments = [*map(np.uint64, pointers), *([] if images is None else [np.int32(images)])]
        self._function(*arguments, grid=grid, block=self.block, stream=stream)


def _missing(error: ImportError) -> str:
    """What to do where PyCUDA cannot be imported."""
    if isinstance(error, ModuleNotFoundError):
        return way_out("gpu")
    return "its libcuda.so.1 comes with NVIDIA's driver, so run this on a machine that has one"


class Device:
    """The first GPU, for as long as the `with` block lasts. Raises DeviceError where there is none."""

    def __init__(self) -> None:
        try:
            from pycuda import driver
        except ImportError as error:
            raise DeviceError(f"PyCUDA cannot be used here ({error}): {_missing(error)}") from None
        self._driver: Any = driver
        self._streams: list[Any] = []
        """For parts of layers that run beside the first."""
        self._awake_at = -IDLE_SECONDS
        """When it was last seen to be awake."""
        try:
            driver.init()
            self._device = driver.Device(0)
            self._context = self._device.retain_primary_context()
        except driver.Error as error:
            raise DeviceError(f"no GPU can be used here ({error}): run this on a machine with one") from None

    def __enter__(self) -> Self:
        self._context.push()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.pop()

    @property
    def name(self) -> str:
        return str(self._device.name())

    @property
    def failure(self) -> type[Exception]:
        """What PyCUDA raises, where nothing here says why: of launches, for instance."""
        kind: type[Exception] = self._driver.Error
        return kind

    @property
    def arch(self) -> str:
        """The architecture whose cubins it runs, as in sm_90."""
        major, minor = self._device.compute_capability()
        return f"sm_{major}{minor}"

    @property
    def facts(self) -> DeviceFacts:
        """Its attributes."""
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
        """Memory on the GPU: `int()` gives its address, `free()` gives it back. Raises DeviceError."""
        try:
            return self._driver.mem_alloc(size_bytes)
        except self._driver.Error as error:
            raise DeviceError(
                f"{self.name} has no {size_bytes / 1e9:.1f} GB left ({error}): take a smaller batch"
            ) from None

    def upload(self, address: int, values: NDArray[Any]) -> None:
        """Copies an array to an address."""
        self._driver.memcpy_htod(address, np.ascontiguousarray(values))

    def copy(self, source: int, target: int, size_bytes: int) -> None:
        """Copies within the GPU."""
        self._driver.memcpy_dtod(target, source, size_bytes)

    def poison(self, address: int, size_bytes: int) -> None:
        """Fills memory with NaN of any data type."""
        self._driver.memset_d8(address, _POISON, size_bytes)

    def fill(self, address: int, size_bytes: int, stream: Any) -> None:
        """Enqueues the writing of zeros."""
        self._driver.memset_d8_async(address, 0, size_bytes, stream)

    def host_array(self, shape: tuple[int, ...], kind: Any) -> NDArray[Any]:
        """An array of a NumPy type in memory that the GPU copies to several times as fast. Raises DeviceError."""
        try:
            array: NDArray[Any] = self._driver.pagelocked_empty(shape, kind)
        except self._driver.Error as error:
            raise DeviceError(f"this machine has no memory left to copy to ({error}): take a smaller batch") from None
        return array

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Fills an array from an address, once all that was launched has run. Raises DeviceError if that failed."""
        try:
            self._driver.Context.synchronize()
            self._driver.memcpy_dtoh(values, address)
        except self._driver.Error as error:
            raise DeviceError(f"a kernel did not run on {self.name}: {error}") from None

    def raw_kernel(self, cubin: bytes, entry: str, block: tuple[int, int, int]) -> RawKernel:
        """Loads a kernel that no template made."""
        return RawKernel(self._driver.module_from_buffer(cubin).get_function(entry), block)

    def wake(self) -> None:
        """Keeps the GPU busy until its clock is up, unless it has just been: what is timed before takes far longer."""
        start = time.monotonic()
        if start - self._awake_at >= IDLE_SECONDS:
            memory = self.allocate(WAKE_BYTES)
            while time.monotonic() - start < WAKE_SECONDS:
                self._driver.memset_d8(int(memory), 0, WAKE_BYTES)
                self._driver.Context.synchronize()
            memory.free()
        self._awake_at = time.monotonic()

    def microseconds(self, launch: Callable[[int], None], sets: int, stream: Any, repeats: int = REPLAYS) -> float:
        """Median time of one launch: a CUDA graph of many, one data set after the other, replayed.

        `launch(i)` launches on `stream`, with set i < `sets`. Raises DeviceError.
        """

        def run(launches: int) -> None:
            for i in range(launches):
                launch(i % sets)

        some = min(sets, GUESSED_LAUNCHES)
        self.wake()
        try:
            run(some)  # loads the code, for which the driver may wait
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
        """To time what a stream does and nothing else."""
        flag = self._driver.pagelocked_empty(1, np.uint32, mem_flags=self._driver.host_alloc_flags.DEVICEMAP)
        return Gate(stream.handle, flag, int(flag.base.get_device_pointer()))

    def elapsed_microseconds(self, stream: Any, gate: Gate, enqueue: Callable[[], None]) -> float:
        """What the GPU takes for what the function enqueues; waits for its end."""
        begin, end = self._driver.Event(), self._driver.Event()
        with gate.closed():
            begin.record(stream)
            enqueue()
            end.record(stream)
        end.synchronize()
        return float(begin.time_till(end)) * 1e3

    def new_stream(self) -> Any:
        """A stream of PyCUDA's; its `handle` is what other libraries take."""
        return self._driver.Stream()

    def load(self, cubin: bytes, launch: Launch, *, addressed: bool = False) -> LoadedKernel:
        """Loads a cubin for repeated launches; `addressed` has it say where its code lies, if the driver tells."""
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
        """Loads all parts of a layer for repeated launches on a stream; see `load`. Raises DeviceError."""
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
        """Runs all parts of a layer on a batch [N, ...]; gives the output, NaN where no kernel wrote anything."""
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
