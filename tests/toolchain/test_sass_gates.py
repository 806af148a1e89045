"""Gates in the direct assembler: loaded only for inputs in use, and waited for."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.errors import MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.sass.assemble.assembler import make_skeleton
from codegen.sass.isa import encoding
from codegen.sass.isa.opcodes import FMUL, LDS
from codegen.sass.qualification import unsupported_reason
from codegen.sass.verify.hazards import check_cubin
from codegen.toolchain.tools import find_toolchain
from tests.templates import verify_random_run
from tests.toolchain.gate_cases import GATE_CASES
from tests.toolchain.machine_case import (
    ARCH,
    directly,
    template_of,
    weights_of,
    whole_layer,
    with_field,
)

ONE_ROW = GATE_CASES["gates"]


def test_an_input_without_weights_is_neither_loaded_nor_multiplied() -> None:
    def count(weights: Weights, opcode: int) -> int:
        return int((encoding.OPCODE.get(directly(ONE_ROW, weights).words) == opcode).sum())

    weights, groups = weights_of(ONE_ROW, 1.0), -(-ONE_ROW.spec.output_channels // ONE_ROW.tiling.group_outputs)
    fewer = Weights(weights.kernel.copy(), weights.bias)
    fewer.kernel[:, 4:8] = 0
    fewer.kernel[:, 9] = 0
    assert count(weights, FMUL) - count(fewer, FMUL) == 5 * groups
    # Each input has a load of its own; the gates of four come in one, and where three are used still do.
    assert count(weights, LDS) - count(fewer, LDS) == 6 * groups


def test_a_gate_that_is_read_before_it_is_waited_for_is_a_hazard() -> None:
    made = directly(ONE_ROW, weights_of(ONE_ROW, 1.0))
    words = made.words
    place = int(np.flatnonzero(encoding.OPCODE.get(words) == FMUL)[0])
    with pytest.raises(MachineCodeError, match=r"reads R\d+ before word \d+ is waited for"):
        check_cubin(with_field(made, encoding.WAIT, place, 0))


def test_a_product_that_is_read_too_soon_is_a_hazard() -> None:
    made = directly(ONE_ROW, weights_of(ONE_ROW, 1.0, "one weight"))
    words = made.words
    place = int(np.flatnonzero(encoding.OPCODE.get(words) == FMUL)[0])
    assert int(encoding.STALL.get(words)[place]) > 1
    with pytest.raises(MachineCodeError, match=r"reads R\d+ 1 cycles after"):
        check_cubin(with_field(made, encoding.STALL, place, 1))


def test_another_gate_is_found_by_the_emulator() -> None:
    weights = weights_of(ONE_ROW, 1.0)
    template, made, whole = template_of(ONE_ROW), directly(ONE_ROW, weights), [whole_layer(ONE_ROW)]
    assert verify_random_run(template, weights, whole, cubins=[made.data]).ok
    words = made.words
    place = int(np.flatnonzero(encoding.OPCODE.get(words) == FMUL)[0])
    other = with_field(made, encoding.SOURCE_B, place, encoding.SOURCE_B.get(words)[place] + 1)
    assert not verify_random_run(template, weights, whole, cubins=[other.data]).ok


def test_gates_of_float16_are_left_to_ptxas_with_the_reason() -> None:
    [case, *_] = [case for case in GATE_CASES.values() if case.spec.data_type == "float16"]
    assert "float16 channel gates" in unsupported_reason(case.spec, case.tiling, ARCH)
    with pytest.raises(MachineCodeError, match="float16 channel gates"):
        make_skeleton(template_of(case), ARCH, find_toolchain())
