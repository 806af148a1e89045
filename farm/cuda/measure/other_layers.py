"""A kernel that stands for the other layers of a network, which run between two runs of a layer.

It copies one half of a buffer to the other, as many bytes as the other layers move. Then it writes the layer's input,
as its predecessor would. Last, its blocks execute more straight-line code than the instruction caches hold.
"""

from __future__ import annotations

from typing import Any

from farm.cuda.device import Device

CODE_INSTRUCTIONS = 16_384
"""256 KB of code, twice a multiprocessor's instruction cache."""
MOST_CACHES = 2
"""Most bytes moved, in sizes of the L2 cache; after that its earlier content is gone."""
BLOCK_THREADS = 256
BLOCKS_OF_MULTIPROCESSOR = 4
_WORD_BYTES = 16
_SUMS = 8
"""Registers that the instructions use in turn."""
_NEVER = -1
"""Number of images for which the kernel would store its results; never passed, but unknown to the compiler."""


class OtherLayers:
    """The loaded kernel and its buffer. Raises DeviceError."""

    def __init__(self, device: Device) -> None:
        facts = device.facts
        self._half_bytes = MOST_CACHES * facts.l2_bytes // 2 // _WORD_BYTES * _WORD_BYTES
        self._memory = device.allocate(2 * self._half_bytes)
        self._kernel = device.raw_kernel(ptx().encode() + b"\0", "others", (BLOCK_THREADS, 1, 1))
        self._grid = (BLOCKS_OF_MULTIPROCESSOR * facts.multiprocessors, 1, 1)

    def enqueue(self, moved_bytes: int | None, source: int, target: int, size_bytes: int, stream: Any) -> None:
        """Enqueue the kernel; it moves `moved_bytes` (None: the whole buffer) and copies the input from `source`."""
        half = self._half_bytes if moved_bytes is None else min(self._half_bytes, _whole_words(moved_bytes // 2))
        start = int(self._memory)
        pointers = (start, start + half, start + self._half_bytes, source, source + _whole_words(size_bytes), target)
        self._kernel(self._grid, pointers, 1, stream)


def _whole_words(size_bytes: int) -> int:
    return -(-size_bytes // _WORD_BYTES) * _WORD_BYTES


def ptx() -> str:
    """PTX of the kernel. Arguments: begin, end and target of two copies, and the number of images."""
    lines = [
        ".version 7.0",
        ".target sm_75",
        ".address_size 64",
        ".visible .entry others(.param .u64 a, .param .u64 a_end, .param .u64 a_to, .param .u64 b, .param .u64 b_end,",
        "                       .param .u64 b_to, .param .u32 images)",
        "{",
        ".reg .pred %p<2>;",
        ".reg .b32 %r<12>;",
        ".reg .b64 %d<8>;",
        f".reg .f32 %f<{_SUMS + 2}>;",
        "mov.u32 %r0, %tid.x;",
        "mov.u32 %r1, %ctaid.x;",
        "mov.u32 %r2, %ntid.x;",
        "mov.u32 %r3, %nctaid.x;",
        "mad.lo.u32 %r4, %r1, %r2, %r0;",
        f"mul.wide.u32 %d0, %r4, {_WORD_BYTES};",
        "mul.lo.u32 %r5, %r2, %r3;",
        f"mul.wide.u32 %d1, %r5, {_WORD_BYTES};",
        *_copy("a"),
        *_copy("b"),
        "setp.ge.u32 %p0, %r0, 32;",
        "@%p0 bra done;",
        "cvt.rn.f32.u32 %f0, %r0;",
        "mov.f32 %f1, 0f3F7FFFFE;",
        *(f"add.f32 %f{2 + i}, %f0, %f{1 + i};" for i in range(_SUMS)),
        *(f"fma.rn.f32 %f{2 + i % _SUMS}, %f{2 + i % _SUMS}, %f1, %f0;" for i in range(CODE_INSTRUCTIONS)),
        "ld.param.u32 %r10, [images];",
        f"setp.ne.s32 %p0, %r10, {_NEVER};",
        "@%p0 bra done;",
        "ld.param.u64 %d2, [a];",
        *(f"st.global.f32 [%d2+{4 * i}], %f{2 + i};" for i in range(_SUMS)),
        "done:",
        "ret;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _copy(name: str) -> list[str]:
    """A coalesced copy of one word per thread and iteration."""
    return [
        f"ld.param.u64 %d2, [{name}];",
        f"ld.param.u64 %d3, [{name}_end];",
        f"ld.param.u64 %d4, [{name}_to];",
        "sub.u64 %d4, %d4, %d2;",
        "add.u64 %d2, %d2, %d0;",
        f"next_{name}:",
        "setp.ge.u64 %p0, %d2, %d3;",
        f"@%p0 bra end_{name};",
        "ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%d2];",
        "add.u64 %d5, %d2, %d4;",
        "st.global.v4.u32 [%d5], {%r6, %r7, %r8, %r9};",
        "add.u64 %d2, %d2, %d1;",
        f"bra next_{name};",
        f"end_{name}:",
    ]
