"""Overlapped chunks: weight code that continues across the barrier between two chunks."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from codegen.ir.layer_spec import AddResidual, Conv2d
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import stream_count
from codegen.model_zoo import random_weights
from codegen.ptx.template import Template
from codegen.sass.assemble.assembler import DirectAssembler, make_skeleton
from codegen.sass.assemble.early_stores import PASSES
from codegen.sass.assemble.scheduling import result_cycles
from codegen.sass.assemble.weight_code import zeroes
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import encoding
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.opcodes import BAR, FFMA_IMMEDIATE, LDG, LDS, STG
from codegen.sass.skeleton.marker_ptx import NO_GROUP, MarkerPtx
from codegen.sass.skeleton.reader import Skeleton
from codegen.toolchain.tools import find_toolchain
from tests.templates import shared_template
from tests.toolchain.machine_cubins import drawn_weights, template_for

SPEC, TILING = Conv2d(16, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 14, 14, 1, 32, 4, 3)


@cache
def template() -> Template:
    return shared_template(SPEC, TILING, "compute_80")


@cache
def skeleton() -> bytes:
    return make_skeleton(template(), "sm_90", find_toolchain()).data


@cache
def last_group() -> Words:
    """The words of the last K group at 80 % zeros."""
    return only_group(template(), skeleton())


def only_group(template: Template, skeleton: bytes, sparsity: float = 0.8) -> Words:
    weights = random_weights(template.spec, sparsity, 1)
    made = DirectAssembler.of(template, skeleton, "sm_90").assemble(weights, Part(0, 1))
    words = CubinFile.read(made.data).words
    leaves = np.flatnonzero((encoding.OPCODE.get(words) == 0x80C) & (encoding.IMMEDIATE.get(words) == NO_GROUP))
    return words[leaves[-1] :]


def places_of(words: Words, opcode: int) -> NDArray[np.int64]:
    always = (encoding.PREDICATE.get(words) == encoding.ALWAYS) & (encoding.NEGATED_PREDICATE.get(words) == 0)
    return np.flatnonzero((encoding.OPCODE.get(words) == opcode) & always)


def test_the_ring_keeps_its_registers_from_the_first_chunk_to_the_last() -> None:
    ring = Skeleton.read(skeleton(), MarkerPtx.of(template(), SM_90)).ring
    assert len(ring) == 4
    assert (ring == ring[0]).all()


def test_multiply_adds_of_a_chunk_stand_before_and_behind_the_barrier_that_ends_it() -> None:
    words = last_group()
    adds, loads, barriers = (places_of(words, each) for each in (FFMA_IMMEDIATE, LDS, BAR))
    for barrier in barriers[1:]:
        last, following = loads[loads < barrier].max(), loads[loads > barrier].min()
        assert ((adds > last) & (adds < barrier)).any()
        assert ((adds > barrier) & (adds < following)).any()


def test_no_word_between_chunks_stalls_longer_than_a_result_takes() -> None:
    gap = DirectAssembler.of(template(), skeleton(), "sm_90").frame.body.gap
    assert gap is not None
    assert gap.stall.max() < SM_90.latencies.longest


def test_no_word_before_the_first_chunk_stalls_longer_than_a_result_takes() -> None:
    """ptxas has the markers of the first chunk there, and the loads that name the sums."""
    frame = DirectAssembler.of(template(), skeleton(), "sm_90").frame
    stalls = encoding.STALL.get(np.concatenate([frame.head, frame.body.words[: frame.body.cuts[0]]]))
    assert max(stalls.max(), frame.body.entry_stall) < SM_90.latencies.longest


def test_the_zeros_of_accumulators_without_weights_issue_one_after_the_other() -> None:
    stalls = encoding.STALL.get(zeroes(np.arange(4), SM_90.latencies))
    assert stalls.tolist() == [1, 1, 1, result_cycles(SM_90.latencies)]


def test_less_than_a_tenth_of_the_cycles_from_first_to_last_multiply_add_issues_nothing() -> None:
    words = last_group()
    adds = places_of(words, FFMA_IMMEDIATE)
    stalls = encoding.STALL.get(words[adds[0] : adds[-1]])
    assert stalls.sum() < 1.1 * len(stalls)


def stores_before_the_last_multiply_add(words: Words) -> int:
    last = places_of(words, FFMA_IMMEDIATE).max()
    return int((encoding.OPCODE.get(words[:last]) == STG).sum())


def test_outputs_are_stored_amid_the_multiply_adds_of_the_last_chunk() -> None:
    words = only_group(template(), skeleton(), sparsity=0.5)
    assert stores_before_the_last_multiply_add(words) >= TILING.group_outputs * (PASSES - 1) / PASSES - 1


def test_outputs_are_stored_behind_all_multiply_adds_where_passes_need_many_loads() -> None:
    words = only_group(template(), skeleton(), sparsity=0.95)
    assert stores_before_the_last_multiply_add(words) == 0


def test_outputs_with_a_residual_are_stored_behind_all_multiply_adds() -> None:
    template = shared_template(replace(SPEC, epilogue=(AddResidual(),)), TILING, "compute_80")
    words = only_group(template, make_skeleton(template, "sm_90", find_toolchain()).data)
    assert stores_before_the_last_multiply_add(words) == 0


def test_no_multiply_add_waits_for_a_residual() -> None:
    spec = Conv2d(64, 56, 56, 256, 1, 1, epilogue=(AddResidual(),))
    template = shared_template(spec, Tiling("conv2d", 512, 1, 1, 16, 8, 3), "compute_80")
    words = only_group(template, make_skeleton(template, "sm_90", find_toolchain()).data)
    loads = np.flatnonzero(encoding.OPCODE.get(words) == LDG)
    multiply_adds = places_of(words, FFMA_IMMEDIATE)
    assert len(loads) == 16
    assert loads[0] < multiply_adds[-1]
    [own] = set(encoding.WRITE_SCOREBOARD.get(words[loads]).tolist())
    behind = multiply_adds[multiply_adds > loads[0]]
    assert not (encoding.WAIT.get(words[behind]) >> own & 1).any()
    assert (encoding.WAIT.get(words[multiply_adds[-1] :]) >> own & 1).any()


def test_a_word_may_wait_for_the_store_that_comes_right_before_it_once_others_have_moved() -> None:
    """64 sums of a large map are stored through two pointers: the second comes where a store has read its data."""
    spec, tiling = Conv2d(3, 224, 224, 64, 3, 3, padding=(1, 1, 1, 1)), Tiling("conv2d", 16, 4, 1, 64, 1, 4)
    template = shared_template(spec, tiling, "compute_80")
    made = make_skeleton(template, "sm_90", find_toolchain())
    only_group(template, made.data, sparsity=0.9)


def test_an_input_is_kept_for_the_next_multiply_add_over_a_load() -> None:
    words = last_group()
    adds, loads = (places_of(words, each) for each in (FFMA_IMMEDIATE, LDS))
    source, kept = encoding.SOURCE_A.get(words), encoding.REUSE.get(words)
    split = [(a, b) for a, b in pairwise(adds) if b == a + 2 and a + 1 in loads]
    same = [a for a, b in split if source[a] == source[b]]
    assert same
    assert all(kept[a] == 1 for a in same)


def test_a_layer_with_a_chunk_without_weights_has_weight_code_chunk_by_chunk() -> None:
    name = "channels and kernels that do not divide"
    template, weights = template_for(name, "compute_80"), drawn_weights(name, 0.0, seed=1)
    skeleton = make_skeleton(template, "sm_90", find_toolchain())
    whole = Part(0, stream_count(template.spec, template.tiling))
    made = DirectAssembler.of(template, skeleton.data, "sm_90").assemble(weights, whole)
    assert not len(places_of(CubinFile.read(made.data).words, LDS))
