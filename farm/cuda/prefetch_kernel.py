"""The kernel that brings other kernels' code into the L2 cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from codegen.errors import DeviceError
from farm.cuda.module import Code, Module, Part, launch_numbers

BLOCKS, THREADS = 2, 32
"""Few: a layer of 128 blocks that begins meanwhile would have two of them on one multiprocessor, and take as long as
that one. On an H200 VGG-16 at batch 1 took 406 us with eight blocks, 370 with two."""
KERNEL = "fetch_code"
PIECE_BYTES = 4096
NAP_NANOSECONDS = 500
"""Between two looks at the clock, about."""
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


def fetcher_of(parts: Iterable[Part]) -> CodeFetcher | None:
    """For their code, in the current context; None where nobody knows where that lies, and for a GPU before sm_90."""
    return open_fetcher() if any(part.code for part in parts) else None


def open_fetcher() -> CodeFetcher | None:
    """In the current context; None for a GPU before sm_90."""
    try:
        return CodeFetcher()
    except DeviceError:
        return None


class CodeFetcher:
    """In the context that is current where it is made, and used."""

    def __init__(self) -> None:
        """Raises DeviceError."""
        self._module = Module(PTX.encode())
        self._function = self._module.function(KERNEL)

    def fetch(self, code: Code, stream: int, wait_nanoseconds: int = 0) -> None:
        """Enqueues it; on the GPU it begins so much later than it could. Raises DeviceError."""
        arguments = code.address, code.bytes, wait_nanoseconds
        launch_numbers(self._function, (BLOCKS, 1, 1), (THREADS, 1, 1), 0, arguments, stream)

    def fetch_all(self, codes: Sequence[Code], stream: int, wait_nanoseconds: int) -> None:
        """One after another; the first waits. Raises DeviceError."""
        for number, code in enumerate(codes):
            self.fetch(code, stream, 0 if number else wait_nanoseconds)

    def unload(self) -> None:
        """It may not run any more."""
        self._module.unload()
