"""Input bounds in the direct assembler: odd bounds and inputs, and products that wait for the bounded input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.errors import MachineCodeError
from codegen.sass.isa import encoding
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.opcodes import FFMA_IMMEDIATE
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import MarkerPtx
from codegen.sass.verify.hazards import check_cubin
from tests.templates import shared_template, verify_random_run
from tests.toolchain.bound_cases import BOUND_CASES, FINISHED, assert_same, both_sides, odd_input
from tests.toolchain.machine_case import (
    computed,
    directly,
    expected,
    template_of,
    weights_of,
    whole_layer,
    with_field,
)
from tests.toolchain.operator_cases import CASES

PLAIN = BOUND_CASES["bounded inputs"]


def places_of(words: Words, name: str) -> NDArray[np.int64]:
    return np.flatnonzero(operands(words, SM_90).named(name))


def in_streams(words: Words) -> NDArray[np.int64]:
    """Bounds, not what an epilogue has: both names of them say the same register."""
    found = places_of(words, "FMNMX")
    return found[encoding.DESTINATION.get(words)[found] == encoding.SOURCE_A.get(words)[found]]


@pytest.mark.parametrize("name", BOUND_CASES)
def test_odd_bounds_and_inputs_give_bit_for_bit_what_the_ptx_does(name: str) -> None:
    case = BOUND_CASES[name]
    weights, x = replace(weights_of(case, 0.5), bounds=both_sides(case)), odd_input(case)
    assert_same(computed(case, weights, directly(case, weights), x), expected(case, weights, x))


def test_each_bound_is_one_word_of_each_k_group_that_has_products_with_its_input() -> None:
    spec, tiling = PLAIN.spec, PLAIN.tiling
    weights = weights_of(PLAIN, 0.3)
    bounds = both_sides(PLAIN)
    read = np.array(
        [
            (weights.kernel[first : first + tiling.group_outputs, :, 0, 0] != 0).any(axis=0)
            for first in range(0, spec.output_channels, tiling.group_outputs)
        ]
    )
    words = directly(PLAIN, replace(weights, bounds=bounds)).words
    assert len(in_streams(words)) == (read @ np.isfinite(bounds).sum(axis=1)).sum()
    none = np.full_like(bounds, [-np.inf, np.inf])
    assert not len(in_streams(directly(PLAIN, replace(weights, bounds=none)).words))


def test_chunks_of_bounded_layers_overlap_and_outputs_are_stored_early() -> None:
    case = BOUND_CASES[FINISHED]
    words = directly(case, weights_of(case, 0.6)).words
    stores, bounds = places_of(words, "STG"), in_streams(words)
    groups = -(-case.spec.output_channels // case.tiling.group_outputs)
    assert groups == 1
    assert (stores < bounds[-1]).any()
    barriers, loads = places_of(words, "BAR"), places_of(words, "LDS")
    products = np.flatnonzero(encoding.OPCODE.get(words) == FFMA_IMMEDIATE)
    for barrier in barriers[1:]:
        assert ((products > loads[loads < barrier].max()) & (products < barrier)).any()


def test_an_input_is_not_kept_over_the_bound_of_another() -> None:
    words = directly(BOUND_CASES[FINISHED], weights_of(BOUND_CASES[FINISHED], 0.6)).words
    bounds = in_streams(words)
    before = bounds[encoding.OPCODE.get(words)[bounds - 1] == FFMA_IMMEDIATE] - 1
    assert len(before)
    assert not encoding.REUSE.get(words)[before].any()


def test_an_input_that_is_brought_within_bounds_before_it_is_waited_for_is_a_hazard() -> None:
    made = directly(PLAIN, weights_of(PLAIN, 1.0))
    words = made.words
    place = int(next(each for each in in_streams(words) if encoding.WAIT.get(words)[each]))
    with pytest.raises(MachineCodeError, match=r"reads R\d+ before word \d+ is waited for"):
        check_cubin(with_field(made, encoding.WAIT, place, 0))


def test_an_input_that_is_read_too_soon_after_its_bound_is_a_hazard() -> None:
    made = directly(PLAIN, weights_of(PLAIN, 1.0, "one weight"))
    words = made.words
    place = int(in_streams(words)[0])
    assert int(encoding.STALL.get(words)[place]) == 5
    with pytest.raises(MachineCodeError, match=r"reads R\d+ 4 cycles after"):
        check_cubin(with_field(made, encoding.STALL, place, 4))


def test_another_bound_is_found_by_the_emulator() -> None:
    weights = weights_of(PLAIN, 1.0)
    template, made, whole = template_of(PLAIN), directly(PLAIN, weights), [whole_layer(PLAIN)]
    assert verify_random_run(template, weights, whole, cubins=[made.data]).ok
    place = int(in_streams(made.words)[0])
    other = with_field(made, encoding.IMMEDIATE, place, int(np.float32(9).view(np.uint32)))
    assert not verify_random_run(template, weights, whole, cubins=[other.data]).ok


def test_bounds_by_comparison_and_choice_are_refused_with_the_reason() -> None:
    case = CASES["bounded inputs on an older GPU"]
    with pytest.raises(MachineCodeError, match="input bounds are not max"):
        MarkerPtx.of(shared_template(case.spec, case.tiling, "compute_75"), SM_90)
