"""A kernel in which each instruction that writes a register stands before each operand that can read it.

It is one chain, in which every instruction needs the one before it, so ptxas leaves the least distances. PTX does not
order uniform instructions; their distances are seen in real kernels only.
"""

from __future__ import annotations

from itertools import product
from typing import Final

from codegen.sass.cubin import CubinFile
from codegen.sass.isa.architectures import architecture_named
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain

_WIDE: Final = "{{ .reg .b32 t; .reg .b64 v, w; %s mov.b64 %s, w; st.volatile.shared.b32 [r1], t; }}"
_FACTORS: Final = ("mul.wide.u32 w, {x}, r1;", "mul.wide.s32 w, r1, {x};")
_ADDENDS: Final = tuple(f"mov.b64 v, {{{{{pair}}}}}; mad.wide.s32 w, r1, r2, v;" for pair in ("{x}, r3", "r3, {x}"))
_HALVES: Final = ("{{{d}, t}}", "{{t, {d}}}")
_INSTRUCTIONS: Final = (
    "fma.rn.f32 {d}, {x}, f1, f2;",
    "fma.rn.f32 {d}, f1, f2, {x};",
    "add.rn.f32 {d}, {x}, f1;",
    "mul.rn.f32 {d}, {x}, f1;",
    "fma.rn.f16x2 {d}, {x}, h1, h2;",
    "fma.rn.f16x2 {d}, h1, h2, {x};",
    "add.rn.f16x2 {d}, {x}, h1;",
    "{{ .reg .b16 a, b; mov.b32 {{a, b}}, {x}; cvt.f32.f16 {d}, a; }}",
    "lop3.b32 {d}, {x}, r1, r2, 0x96;",
    "shf.l.wrap.b32 {d}, {x}, r1, r2;",
    "prmt.b32 {d}, {x}, r1, r2;",
    "max.f32 {d}, {x}, f1;",
    "cvt.rn.f16x2.f32 {d}, {x}, f1;",
    "add.s32 {d}, {x}, r1; add.s32 {d}, {d}, r2;",
    "add.s32 {d}, {x}, 12345;",
    "{{ .reg .b32 t; shl.b32 t, {x}, 3; add.s32 {d}, t, r1; }}",
    "selp.b32 {d}, {x}, r1, p1;",
    "mad.lo.s32 {d}, {x}, r1, r2;",
    "mad.lo.s32 {d}, r1, r2, {x};",
    "mul.hi.u32 {d}, {x}, r1;",
    "mad.hi.u32 {d}, r1, r2, {x};",
    "mad.hi.s32 {d}, r1, r2, {x};",
    "ex2.approx.ftz.f32 {d}, {x};",
    "{{ .reg .u32 a; mov.b32 a, {x}; ld.volatile.shared.b32 {d}, [a]; }}",
    "{{ .reg .u32 a; mov.b32 a, {x}; st.volatile.shared.b32 [a], r1; }}",
    "st.volatile.shared.b32 [r1], {x};",
    "st.volatile.global.b32 [d1], {x};",
    "{{ .reg .b64 v; mov.b64 v, {{{x}, r3}}; ld.volatile.global.b32 {d}, [v]; }}",
    "{{ .reg .b64 v; mov.b64 v, {{r3, {x}}}; ld.volatile.global.b32 {d}, [v]; }}",
    "{{ .reg .pred p; setp.lt.s32 p, {x}, r1; selp.b32 {d}, r2, r3, p; }}",
    "{{ .reg .pred p; setp.lt.s32 p, {x}, r1; mov.b32 {d}, {x}; @p ld.volatile.shared.b32 {d}, [r1]; }}",
    "{{ .reg .pred p; setp.lt.f32 p, {x}, f1; selp.b32 {d}, r2, r3, p; }}",
    "{{ .reg .pred p, q; setp.lt.s32 p, {x}, r1; setp.lt.and.s32 q, r2, r3, p; selp.b32 {d}, r2, r3, q; }}",
    "add.cc.u32 {d}, {x}, r1; addc.u32 {d}, r2, r3;",
    "{{ .reg .b32 t; .reg .b64 v, w; mov.b64 v, {{{x}, r3}}; mul.hi.u64 w, v, d2; mov.b64 {{t, {d}}}, w; }}",
    *(_WIDE % each for each in product((*_FACTORS, *_ADDENDS), _HALVES)),
)
"""PTX that reads `{x}` and writes `{d}`, both of 32 bits."""
_PAIR: Final = "{{ .reg .b32 t; .reg .b64 v, w; mov.b64 v, %s; %s mov.b64 %s, w; }}"
_OF_64_BITS: Final = tuple(
    _PAIR % each
    for each in product(
        ("{{{x}, r3}}", "{{r3, {x}}}"), ("add.s64 w, v, d2;", "selp.b64 w, v, d2, p1;"), ("{{{d}, t}}", "{{t, {d}}}")
    )
)
"""More of it, of which architectures with instructions of 64 bits make one."""
_BEGIN: Final = """.version {version}
.target {arch}
.address_size 64
.shared .align 16 .b8 space[4096];
.visible .entry chain(.param .u64 memory) {{
.reg .b64 d<3>; .reg .b32 r<4>, h<3>, x<{values}>; .reg .f32 f<3>; .reg .pred p1;
ld.param.u64 d0, [memory];
mov.u32 r0, %tid.x;
mad.wide.u32 d0, r0, 64, d0;
ld.volatile.global.b32 r1, [d0]; ld.volatile.global.b32 r2, [d0+4]; ld.volatile.global.b32 r3, [d0+8];
ld.volatile.global.b32 h1, [d0+12]; ld.volatile.global.b32 h2, [d0+16];
ld.volatile.global.b32 f1, [d0+20]; ld.volatile.global.b32 f2, [d0+24];
ld.volatile.global.b64 d1, [d0+32]; ld.volatile.global.b64 d2, [d0+40];
setp.lt.s32 p1, r1, r2;
ld.volatile.global.b32 x0, [d0+48];
"""


def latency_chain(arch: str) -> CubinFile:
    """The chain, by ptxas, for an architecture."""
    lacks_packed_conversion = virtual_arch(arch) == "compute_75"
    instructions = [each for each in _INSTRUCTIONS if not (lacks_packed_conversion and "f16x2.f32" in each)]
    instructions += (
        _OF_64_BITS if "IADD.64" in {each.name for each in architecture_named(arch).opcodes.values()} else ()
    )
    lines, values = [], 0
    for instruction in (each for pair in product(instructions, repeat=2) for each in pair):
        lines.append(instruction.format(x=f"x{values}", d=f"x{values + 1}"))
        values += "{d}" in instruction
    end = f"st.volatile.global.b32 [d0], x{values};\nret;\n}}\n"
    ptx = (
        _BEGIN.format(version="9.0" if arch == "sm_110" else "8.8", arch=arch, values=values + 1)
        + "\n".join(lines)
        + "\n"
        + end
    )
    return CubinFile.read(assemble(ptx.encode(), arch, find_toolchain()).data)
