"""Runs small kernels written by hand: the text around a body, and the registers it may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.emulator.ptx.emulate import Trace

REGISTERS = ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .f32 %f<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>;"

INDEX = "mov.u32 %r0, %tid.x; mov.u32 %r8, %ctaid.x; mov.u32 %r9, %ntid.x; mad.lo.s32 %r1, %r8, %r9, %r0;"
"""%r0 the thread of the block, %r1 the thread of the grid, %rd1 where its word of the first argument is."""
FIRST = "ld.param.u64 %rd0, [a]; mad.wide.u32 %rd1, %r1, 4, %rd0;"
SHARED = "shl.b32 %r2, %r0, 2; mov.u32 %r3, tile; add.s32 %r2, %r2, %r3;"
"""%r2 the thread's word of the shared tile, %r3 the tile."""


def launch(
    body: str,
    arguments: Sequence[NDArray[Any] | int | float],
    threads: int = 4,
    blocks: int = 1,
    shared_bytes: int = 0,
    parameters: str = ".param .u64 a",
    chosen: Sequence[tuple[int, int, int]] | None = None,
    limit: int = 10_000,
    interleaving: int | None = None,
) -> Trace:
    text = f"""
.version 9.0
.target sm_80
.extern .shared .align 16 .b8 tile[];
.visible .entry k({parameters}) {{
{REGISTERS}
{body}
}}"""
    return emulate.run(
        text,
        (blocks, 1, 1),
        (threads, 1, 1),
        shared_bytes,
        arguments,
        blocks=chosen,
        instruction_limit=limit,
        interleaving=interleaving,
    )


def words(count: int) -> NDArray[np.uint32]:
    return np.zeros(count, dtype=np.uint32)


NEIGHBOUR = "xor.b32 %r6, %r2, 4; ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd1], %r7; ret;"
