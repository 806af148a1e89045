"""Prefetch of code: which layers' code is fetched into the L2 cache while earlier layers run, and the kernel for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, prod

from codegen.errors import DeviceError
from codegen.ir.launch import Launch
from farm.cuda.module import CodeRange, LoadedPart, Module, launch_numbers

WARP = 32
MIN_CODE_BYTES = 100_000
"""Least code of a layer for a prefetch: less arrives in time without one."""
FETCH_BYTES_PER_MICROSECOND = 1_500_000.0
"""Rate of fetching code from DRAM while layers run."""
INSTRUCTION_BYTES = 16
ISSUED_PER_MICROSECOND = 4700.0
"""Instructions that a multiprocessor issues to warps that execute one instruction stream."""
STREAMED_PER_MICROSECOND = 300.0
"""Distinct instructions that a multiprocessor executes when they come from the L2 cache."""
LAUNCH_MICROSECONDS = 2.0
WAIT_SHARE = 0.6
"""Share of the predicted time until a layer for which its prefetch waits: layers are up to 1.44x faster."""
MIN_MOVED_BYTES = 5_000_000
"""Least traffic of the layer beside a prefetch for the prefetch to wait.

With less traffic no code is evicted, and the predictions, made for many images, are too long: a layer of few rows with
a weight table takes a fifth of its predicted time.
"""
CACHE_SHARE = 0.4
"""Share of the L2 cache for prefetched code: code may be in it twice, and the layers' data passes through the rest."""
BLOCKS, THREADS = 2, 32
"""Launch of the prefetch kernel: small, because a layer of 128 blocks that starts meanwhile would share multiprocessors
with it. VGG-16 at batch 1 on an H200 took 406 us with eight blocks, 370 us with two."""
KERNEL = "fetch_code"
PIECE_BYTES = 4096
"""Bytes of one prefetch instruction."""
NAP_NANOSECONDS = 500
"""Approximate interval of reading the clock while waiting."""
PTX = f"""
.version 8.0
.target sm_90
.address_size 64
.visible .entry {KERNEL}(.param .u64 begin, .param .u64 bytes, .param .u64 wait)
{{
    .reg .b64 %at, %end, %left, %step, %now, %until;
    .reg .b32 %block, %blocks, %thread, %size;
    .reg .pred %none;
    ld.param.u64 %at, [begin];
    ld.param.u64 %end, [bytes];
    add.u64 %end, %at, %end;
    mov.u32 %block, %ctaid.x;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %step, %block, {PIECE_BYTES};
    add.u64 %at, %at, %step;
    mul.wide.u32 %step, %blocks, {PIECE_BYTES};
    setp.ne.u32 %none, %thread, 0;
    @%none bra done;
    setp.ge.u64 %none, %at, %end;
    @%none bra done;
    ld.param.u64 %until, [wait];
    mov.u64 %now, %globaltimer;
    add.u64 %until, %until, %now;
asleep:
    mov.u64 %now, %globaltimer;
    setp.ge.u64 %none, %now, %until;
    @%none bra next;
    nanosleep.u32 {NAP_NANOSECONDS};
    bra asleep;
next:
    sub.u64 %left, %end, %at;
    min.u64 %left, %left, {PIECE_BYTES};
    cvt.u32.u64 %size, %left;
    cp.async.bulk.prefetch.L2.global [%at], %size;
    add.u64 %at, %at, %step;
    setp.lt.u64 %none, %at, %end;
    @%none bra next;
done:
    ret;
}}
"""


@dataclass(frozen=True)
class GpuLimits:
    """Properties of a GPU that a prefetch plan depends on."""

    multiprocessors: int
    l2_bytes: int


@dataclass(frozen=True)
class LayerEstimate:
    """Predicted times and sizes of a layer for a number of images."""

    microseconds: float
    """Time of the layer with its code in the L2 cache."""
    fetch_microseconds: float
    """Time of fetching its code; 0 if its code is too small to prefetch."""
    code_bytes: int
    moved_bytes: int
    """Bytes of its input and output."""


def estimate_layer(
    launches: Sequence[tuple[Launch, int]], image_bytes: int, images: int, gpu: GpuLimits
) -> LayerEstimate:
    """Estimate a layer from its launches, each with its code size, and the bytes of one image's input and output."""
    issued = longest = 0.0
    for launch, code_bytes in launches:
        x, y, z = launch.grid_at(min(images, launch.images_limit))
        issued += x * y * -(-prod(launch.block) // WARP) * code_bytes / INSTRUCTION_BYTES
        longest = max(longest, code_bytes / z / INSTRUCTION_BYTES)
    code_bytes = sum(count for _, count in launches)
    return LayerEstimate(
        LAUNCH_MICROSECONDS
        + max(issued / ISSUED_PER_MICROSECOND / gpu.multiprocessors, longest / STREAMED_PER_MICROSECOND),
        LAUNCH_MICROSECONDS + code_bytes / FETCH_BYTES_PER_MICROSECOND if code_bytes >= MIN_CODE_BYTES else 0.0,
        code_bytes,
        image_bytes * images,
    )


@dataclass(frozen=True)
class Prefetches:
    """Prefetches that start together with a layer."""

    layers: tuple[int, ...] = ()
    """Indices of the layers whose code is fetched, in order."""
    wait_nanoseconds: int = 0
    """Wait before the first of them."""


def plan_prefetches(layers: Sequence[LayerEstimate], l2_bytes: int) -> tuple[Prefetches, ...]:
    """The prefetches to start with each layer of a network, given in order of execution.

    A layer's prefetch starts with the last layer from which the time until the layer suffices. It starts later if the
    code from there on exceeds the share of the cache, and with the layer's predecessor at the latest. It waits before
    it fetches, because it would delay the other layer's own code, and that layer's data would evict what it fetches.
    Nothing is prefetched for a network that stays in the cache from run to run.
    """
    room = CACHE_SHARE * l2_bytes
    starts: list[list[int]] = [[] for _ in layers]
    waits = [inf for _ in layers]
    if sum(each.code_bytes + each.moved_bytes for each in layers) <= room:
        return tuple(Prefetches() for _ in layers)
    for number, layer in enumerate(layers):
        if not number or not layer.fetch_microseconds:
            continue
        start = number - 1
        time, waiting = layers[start].microseconds, layer.code_bytes + layers[start].code_bytes
        while start and time < layer.fetch_microseconds and waiting + layers[start - 1].code_bytes <= room:
            start -= 1
            time += layers[start].microseconds
            waiting += layers[start].code_bytes
        starts[start].append(number)
        share = WAIT_SHARE if layers[start].moved_bytes >= MIN_MOVED_BYTES else 0.0
        waits[start] = min(waits[start], max(0.0, share * time - layer.fetch_microseconds))
    return tuple(
        Prefetches(tuple(numbers), int(1000 * wait)) if numbers else Prefetches()
        for numbers, wait in zip(starts, waits, strict=True)
    )


def prefetcher_for(parts: Iterable[LoadedPart]) -> CodePrefetcher | None:
    """A prefetcher for parts in the current context; None if no code address is known, or before sm_90."""
    return open_prefetcher() if any(part.code for part in parts) else None


def open_prefetcher() -> CodePrefetcher | None:
    """A prefetcher in the current context; None for a GPU before sm_90."""
    try:
        return CodePrefetcher()
    except DeviceError:
        return None


class CodePrefetcher:
    """The prefetch kernel, loaded into the context that is current at creation and use."""

    def __init__(self) -> None:
        """Load the kernel. Raises DeviceError."""
        self._module = Module(PTX.encode())
        self._function = self._module.function(KERNEL)

    def fetch(self, code: CodeRange, stream: int, wait_nanoseconds: int = 0) -> None:
        """Enqueue a prefetch, which waits on the GPU before it starts. Raises DeviceError."""
        arguments = code.address, code.bytes, wait_nanoseconds
        launch_numbers(self._function, (BLOCKS, 1, 1), (THREADS, 1, 1), 0, arguments, stream)

    def fetch_all(self, codes: Sequence[CodeRange], stream: int, wait_nanoseconds: int) -> None:
        """Enqueue prefetches one after another, of which the first waits. Raises DeviceError."""
        for number, code in enumerate(codes):
            self.fetch(code, stream, 0 if number else wait_nanoseconds)

    def unload(self) -> None:
        """Unload the kernel, which must not be running."""
        self._module.unload()
