"""Sources that are valid, and slow to compile."""

from __future__ import annotations

import random

ACCUMULATORS = 128


def straight_line(fmas: int, name: str = "straight_line") -> bytes:
    """One kernel of multiply-adds without a branch: 2,000 take ptxas 0.1 s, 80,000 more than 10 s and 500 MB."""
    choose = random.Random(1)
    lines = [
        f".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry {name}(.param .u64 data)\n{{",
        f".reg .f32 %f<{ACCUMULATORS}>;\n.reg .f32 %x<32>;\n.reg .b64 %rd<3>;",
        "ld.param.u64 %rd1, [data];\ncvta.to.global.u64 %rd2, %rd1;",
        *(f"ld.global.f32 %x{i}, [%rd2+{4 * i}];" for i in range(32)),
        *(f"mov.f32 %f{i}, 0f00000000;" for i in range(ACCUMULATORS)),
        *(_fma(i % ACCUMULATORS, choose.randrange(32), choose.randrange(2**24)) for i in range(fmas)),
        *(f"st.global.f32 [%rd2+{4 * i}], %f{i};" for i in range(ACCUMULATORS)),
        "ret;\n}\n",
    ]
    return "\n".join(lines).encode()


def _fma(total: int, multiplicand: int, bits: int) -> str:
    return f"fma.rn.f32 %f{total}, %x{multiplicand}, 0f3F{bits:06X}, %f{total};"


def straight_line_cuda(steps: int) -> str:
    """One CUDA kernel whose steps cannot be merged: 10,000 take nvcc more than 10 s."""
    lines = [f"a = fmaf(a, p[{i % 64}], {i + 1}.5f); if (a > {i}.f) p[{i}] = a;" for i in range(steps)]
    return "\n".join(["__global__ void straight_line(float* p) { float a = p[0];", *lines, "p[0] = a; }\n"])
