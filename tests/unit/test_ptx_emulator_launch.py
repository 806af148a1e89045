"""Arguments of a launch, and those that do not fit the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, REGISTERS, SHARED, launch, words


def test_every_thread_knows_its_place() -> None:
    registers = [f"%{name}.{axis}" for name in ("tid", "ctaid", "ntid", "nctaid") for axis in "xyz"]
    stores = "\n".join(f"mov.u32 %r20, {r}; st.global.u32 [%rd1+{4 * i}], %r20;" for i, r in enumerate(registers))
    text = f"""
.version 9.0
.target sm_80
.visible .entry k(.param .u64 a) {{ {REGISTERS}
mov.u32 %r1, %ctaid.z; mov.u32 %r2, %nctaid.y; mov.u32 %r3, %ctaid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %nctaid.x; mov.u32 %r3, %ctaid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %ntid.z; mov.u32 %r3, %tid.z; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %ntid.y; mov.u32 %r3, %tid.y; mad.lo.u32 %r1, %r1, %r2, %r3;
mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r1, %r1, %r2, %r3;
ld.param.u64 %rd1, [a]; mad.wide.u32 %rd1, %r1, 48, %rd1;
{stores} ret; }}"""
    grid, block = (2, 3, 2), (4, 2, 3)
    places = np.zeros((2, 3, 2, 3, 2, 4, 12), dtype=np.uint32)
    trace = emulate.run(text, grid, block, 0, [places])
    assert trace.threads == 12 * 24
    for cz, cy, cx, tz, ty, tx in np.ndindex(places.shape[:-1]):
        assert places[cz, cy, cx, tz, ty, tx].tolist() == [tx, ty, tz, cx, cy, cz, *block, *grid]


def test_only_the_chosen_blocks_run() -> None:
    out = words(12)
    body = INDEX + FIRST + "st.global.u32 [%rd1], 7; ret;"
    trace = launch(body, [out], threads=3, blocks=4, chosen=[(1, 0, 0), (3, 0, 0)])
    assert out.tolist() == [0, 0, 0, 7, 7, 7, 0, 0, 0, 7, 7, 7]
    assert trace.threads == 6
    with pytest.raises(EmulationError, match=r"block \(4, 0, 0\) is outside of the grid"):
        launch(body, [out], threads=3, blocks=4, chosen=[(4, 0, 0)])


def test_blocks_that_do_not_fit_together_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "_MEMORY_BYTES", 1)
    out = words(12)
    body = (
        INDEX + FIRST + SHARED + "st.shared.u32 [%r2], %r1; ld.shared.u32 %r4, [%r2]; st.global.u32 [%rd1], %r4; ret;"
    )
    trace = launch(body, [out], threads=3, blocks=4, shared_bytes=12)
    assert out.tolist() == list(range(12))
    assert (trace.threads, trace.executed["ret"]) == (12, 12)


def test_numbers_are_passed_by_value() -> None:
    out = words(4)
    launch(
        "ld.param.u64 %rd0, [a]; ld.param.u32 %r1, [n]; ld.param.f32 %f1, [x]; ld.param.u64 %rd2, [m];"
        "st.global.u32 [%rd0], %r1; st.global.f32 [%rd0+4], %f1; st.global.u64 [%rd0+8], %rd2; ret;",
        [out, -3, 1.5, 2**40],
        threads=1,
        parameters=".param .u64 a, .param .s32 n, .param .f32 x, .param .u64 m",
    )
    assert out.tolist() == [2**32 - 3, 0x3FC00000, 0, 256]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([words(1), words(1)], "takes 1 arguments, 2 were given"),
        ([np.zeros((4, 4), dtype=np.float32)[:, ::2]], "contiguous"),
        ([1.5], "is not an integer"),
    ],
)
def test_arguments_that_do_not_fit_are_errors(arguments: list[Any], message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        launch("ret;", arguments)


def test_the_kernel_is_named_if_there_are_several() -> None:
    text = ".version 9.0\n.target sm_80\n.entry one() { ret; }\n.entry two() .maxntid 32 { ret; exit; }"
    with pytest.raises(EmulationError, match="one, two"):
        emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [])
    with pytest.raises(EmulationError, match="three"):
        emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [], kernel="three")
    assert emulate.run(text, (1, 1, 1), (1, 1, 1), 0, [], kernel="one").executed == {"ret": 1}
    with pytest.raises(EmulationError, match="compiled for 32 threads, the launch has 64"):
        emulate.run(text, (1, 1, 1), (64, 1, 1), 0, [], kernel="two")
