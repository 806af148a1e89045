"""Kernels with clusters without ptxas: each block its own stream, the sums met in distributed shared memory."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate as ptx
from codegen.emulator.sass import emulate
from codegen.errors import EmulationError, MachineCodeError
from codegen.ir.checkpoint import Weights
from codegen.ir.launch import Launch
from codegen.ir.tiling import Part
from codegen.kernels import stream_count
from codegen.ptx.rewrite import rewrite
from codegen.sass.assemble.assembler import DirectAssembler
from codegen.sass.cubin import CubinFile
from codegen.sass.isa import encoding
from codegen.sass.isa.architectures.sm_90 import SM_90
from codegen.sass.isa.encoding import Words
from codegen.sass.isa.opcodes import (
    CCTL,
    CGAERRBAR,
    ERRBAR,
    EXIT,
    MEMBAR,
    NOP,
    STS_PLAIN,
    UCGABAR_ARRIVE,
    UCGABAR_WAIT,
    UNIFORM_B,
    UNIFORM_DESTINATION,
)
from codegen.sass.isa.operands import operands
from codegen.sass.skeleton.marker_ptx import MarkerPtx
from codegen.sass.skeleton.reader import Skeleton
from codegen.sass.verify.hazards import check, check_cubin
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from codegen.verification.compare import poisoned, random_input, random_residual
from tests.templates import verify_random_run
from tests.toolchain.cluster_cases import CLUSTER_CASES
from tests.toolchain.machine_cubins import drawn_weights, template_for
from tests.toolchain.test_sass_assembler import products_in_ptx, products_in_words, skeleton_of

ARCH = "sm_90"
TWO = "a cluster of two, kernels that do not divide"
EIGHT = "a cluster of eight"
HALVES = "float16, a cluster of four, pairs of images, kernels that do not divide"
LD, S2UR = 0x980, 0x9C3
CLUSTER_RANK = 0x88
MASKS = ("no weight", "one weight", "a block without weights", "one block with weights", "one chunk empty", "no zero")


def masked(name: str, mask: str) -> Weights:
    """Drawn weights where the mask leaves any; a block has the channels of its share."""
    case, weights = CLUSTER_CASES[name], drawn_weights(name, 1.0, seed=3)
    share, chunk = case.spec.channels // case.tiling.cluster, case.tiling.chunk_channels
    kept = np.ones(case.spec.weights_shape, dtype=bool)
    match mask:
        case "no weight":
            kept[:] = False
        case "one weight":
            kept[:] = False
            kept[1, share + 1, -1, 0] = True
        case "a block without weights":
            kept[:, share : 2 * share] = False
        case "one block with weights":
            kept[:, :share] = False
            kept[:, 2 * share :] = False
        case "one chunk empty":
            kept[:, chunk : 2 * chunk] = False
    return Weights(np.where(kept, weights.kernel, np.float32(0)), weights.bias)


def directly(name: str, weights: Weights, part: Part | None = None) -> CubinFile:
    template = template_for(name, "compute_90")
    whole = part or Part(0, stream_count(template.spec, template.tiling))
    return CubinFile.read(DirectAssembler.of(template, skeleton_of(name).data, ARCH).assemble(weights, whole).data)


def arguments(name: str, launch: Launch) -> tuple[NDArray[Any], list[NDArray[Any] | int]]:
    case = CLUSTER_CASES[name]
    output = poisoned(case.spec, case.batch)
    named: dict[str, Any] = {"input": random_input(case.spec, case.batch, seed=1), "output": output}
    named |= {"residual": random_residual(case.spec, case.batch, seed=0), "images": case.batch}
    named["output_step"] = prod(case.spec.output_shape)
    return output, [named[each] for each in launch.arguments]


def computed(name: str, weights: Weights, cubin: CubinFile) -> NDArray[Any]:
    launch = rewrite(template_for(name, "compute_90"), weights).launch
    output, given = arguments(name, launch)
    emulate.run(cubin, launch.grid_at(CLUSTER_CASES[name].batch), launch.block, launch.shared_bytes, given)
    return output.view(f"u{output.itemsize}")


def expected(name: str, weights: Weights) -> NDArray[Any]:
    """The output of the rewritten PTX."""
    kernel = rewrite(template_for(name, "compute_90"), weights)
    output, given = arguments(name, kernel.launch)
    grid = kernel.launch.grid_at(CLUSTER_CASES[name].batch)
    ptx.run(kernel.ptx, grid, kernel.launch.block, kernel.launch.shared_bytes, given)
    return output.view(f"u{output.itemsize}")


def changed(cubin: CubinFile, words: Words) -> CubinFile:
    return CubinFile.read(cubin.with_words(words))


def places(words: Words, opcode: int) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.flatnonzero(encoding.OPCODE.get(words) == opcode)
    return found


def nothing(words: Words) -> Words:
    return words[int(places(words, NOP)[-1])]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return drawn_weights(TWO, 0.5, seed=1)


@pytest.fixture(scope="module")
def cubin(weights: Weights) -> CubinFile:
    return directly(TWO, weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTER_CASES)
@pytest.mark.parametrize("density", [0.1, 0.5])
def test_blocks_of_a_cluster_compute_bit_for_bit_what_the_ptx_does(name: str, density: float) -> None:
    weights = drawn_weights(name, density, seed=1)
    np.testing.assert_array_equal(computed(name, weights, directly(name, weights)), expected(name, weights))


@pytest.mark.parametrize("name", [TWO, EIGHT, HALVES])
@pytest.mark.parametrize("mask", MASKS)
def test_blocks_with_little_or_nothing_to_do_compute_bit_for_bit_what_the_ptx_does(name: str, mask: str) -> None:
    weights = masked(name, mask)
    np.testing.assert_array_equal(computed(name, weights, directly(name, weights)), expected(name, weights))


def test_the_words_of_ptxas_compute_what_those_made_without_it_do(weights: Weights, cubin: CubinFile) -> None:
    kernel = rewrite(template_for(TWO, "compute_90"), weights)
    by_ptxas = CubinFile.read(assemble(kernel.ptx, ARCH, find_toolchain(), ("-O1",)).data)
    check_cubin(by_ptxas)
    np.testing.assert_array_equal(computed(TWO, weights, by_ptxas), computed(TWO, weights, cubin))


@pytest.mark.parametrize("name", [name for name, case in CLUSTER_CASES.items() if case.spec.data_type == "float32"])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_every_block_s_stream_has_the_products_of_its_own_channels_in_order(name: str, density: float) -> None:
    template, weights = template_for(name, "compute_90"), drawn_weights(name, density, seed=1)
    whole = Part(0, stream_count(template.spec, template.tiling))
    form = Skeleton.read(skeleton_of(name).data, MarkerPtx.of(template, SM_90))
    found = products_in_words(directly(name, weights), form)
    assert len(found) == whole.end
    assert found == products_in_ptx(template, weights, whole)


def test_a_part_has_whole_clusters_of_streams() -> None:
    name = "a cluster of four, in tiles, chunks copied as there is room"
    template, weights = template_for(name, "compute_90"), drawn_weights(name, 0.5, seed=1)
    part = Part(4, 8)
    made = directly(name, weights, part)
    assert verify_random_run(template, weights, [part], cubins=[made.data]).ok
    assert made.cluster == (1, 1, 4)


def test_a_skeleton_with_a_word_that_is_not_known_is_refused(weights: Weights) -> None:
    template, skeleton = template_for(TWO, "compute_90"), CubinFile.read(skeleton_of(TWO).data)
    words = skeleton.words
    encoding.OPCODE.put(words[6:7], 0x7F0)
    changed_skeleton = skeleton.with_words(words)
    with pytest.raises(MachineCodeError, match="unknown opcode 0x7f0"):
        DirectAssembler.of(template, changed_skeleton, ARCH).assemble(weights, Part(0, 2))


def test_a_uniform_result_is_as_far_from_its_reader_as_ptxas_puts_it(cubin: CubinFile) -> None:
    """The base of a block's shared memory, by ULEA, and the LEA that adds a thread's place: ptxas leaves 6 cycles."""
    used = operands(cubin.words, SM_90)
    uniform, reader = (int(np.flatnonzero(used.named(name))[-1]) for name in ("ULEA", "LEA"))
    words = np.repeat(nothing(cubin.words)[np.newaxis], 12, axis=0)
    words[0], words[1] = cubin.words[uniform], cubin.words[reader]
    words[11] = cubin.words[int(places(cubin.words, EXIT)[-1])]
    name = int(UNIFORM_DESTINATION.get(words)[0])
    for field in (encoding.WAIT, encoding.PREDICATE, encoding.STALL):
        field.put(words, 7 if field is encoding.PREDICATE else 0)
    encoding.STALL.put(words, 5)
    UNIFORM_B.put(words[1:2], name)
    assert [each.reason for each in check(words, 255, SM_90)] == [f"reads UR{name} 5 cycles after word 0, not 6"]
    encoding.STALL.put(words[:1], 6)
    assert check(words, 255, SM_90) == []


def test_who_reads_a_result_and_then_overwrites_it_is_held_to_the_cycles_of_its_reading(cubin: CubinFile) -> None:
    """An HFMA2.MMA that makes a register zero, and an IMAD.WIDE that adds to it in place, 8 cycles later."""
    words, nop = cubin.words[:12], nothing(cubin.words)
    words[:] = nop
    words[0] = 0x00000000FF097435, 0x000FE200000001FF | 8 << 41
    words[1] = 0x000003200F087825, 0x000FE200078E0008 & ~(15 << 41) | 5 << 41
    words[11] = 0x000000000000794D, 0x000FEA0003800000
    encoding.STALL.put(words[:1], 8)
    encoding.STALL.put(words[1:2], 5)
    assert check(words, cubin.registers, SM_90) == []
    encoding.STALL.put(words[:1], 7)
    assert [each.reason for each in check(words, cubin.registers, SM_90)] == ["reads R9 7 cycles after word 0, not 8"]
    encoding.DESTINATION.put(words[1:2], 8)
    encoding.SOURCE_C.put(words[1:2], 10)
    encoding.STALL.put(words[:1], 8)
    assert [each.reason for each in check(words, cubin.registers, SM_90)] == [
        "overwrites R9 8 cycles after word 0, not 9"
    ]


def test_a_sum_in_another_register_is_refused() -> None:
    skeleton = CubinFile.read(skeleton_of(TWO).data)
    words = skeleton.words
    stores = places(words, STS_PLAIN)
    last = int(stores[stores < places(words, MEMBAR)[0]][-1])
    encoding.SOURCE_B.put(words[last : last + 1], encoding.SOURCE_B.get(words)[last - 1])
    with pytest.raises(MachineCodeError, match="stored for the other blocks of its cluster"):
        Skeleton.read(skeleton.with_words(words), MarkerPtx.of(template_for(TWO, "compute_90"), SM_90))


@pytest.mark.parametrize(
    ("opcode", "which", "reason"),
    [
        (MEMBAR, 0, "written since the last barrier of the cluster"),
        (UCGABAR_ARRIVE, 0, "waits at the cluster barrier without having arrived"),
        (UCGABAR_WAIT, 0, "shared memory of another block was written|arrives twice"),
    ],
)
def test_a_cluster_barrier_without_one_of_its_words_is_found_by_the_emulator(
    weights: Weights, cubin: CubinFile, opcode: int, which: int, reason: str
) -> None:
    words = cubin.words
    words[places(words, opcode)[which]] = nothing(words)
    with pytest.raises(EmulationError, match=reason):
        computed(TWO, weights, changed(cubin, words))


def test_blocks_that_do_not_wait_for_readers_of_their_sums_are_refused(cubin: CubinFile) -> None:
    words = cubin.words
    for opcode in (UCGABAR_ARRIVE, UCGABAR_WAIT, CCTL):
        words[places(words, opcode)[1::2]] = nothing(words)
    assert any("no barrier behind it" in each.reason for each in check(words, cubin.registers, SM_90))


def test_shared_memory_of_another_block_s_address_is_found(weights: Weights, cubin: CubinFile) -> None:
    """Every block takes itself for the one of rank 0."""
    words = cubin.words
    ranks = places(words, S2UR)
    ranks = ranks[encoding.Field(72, 8).get(words)[ranks] == CLUSTER_RANK]
    assert len(ranks)
    for rank in ranks.tolist():
        to = int(encoding.DESTINATION.get(words)[rank])
        words[rank, 0] = np.uint64(0x7882 | to << 16)  # UMOV of 0
        words[rank, 1] = np.uint64(int(words[rank, 1]) & ~((1 << 41) - 1))
    with pytest.raises(EmulationError, match="shared memory of rank 0 in rank 1"):
        computed(TWO, weights, changed(cubin, words))


@pytest.mark.parametrize(
    ("opcode", "which", "reason"),
    [
        (MEMBAR, 0, "no barrier and fence before it|a fence without a cluster barrier"),
        (0x5AB, 0, "a fence without a cluster barrier"),
        (UCGABAR_ARRIVE, 0, "do not arrive and wait in turn"),
        (UCGABAR_WAIT, 0, "do not arrive and wait in turn"),
        (CCTL, 0, "later loads may return older data"),
        (UCGABAR_ARRIVE, 1, "do not arrive and wait in turn"),
    ],
)
def test_a_cluster_barrier_without_one_of_its_words_is_refused(
    cubin: CubinFile, opcode: int, which: int, reason: str
) -> None:
    words = cubin.words
    words[places(words, opcode)[which]] = nothing(words)
    with pytest.raises(MachineCodeError, match=reason):
        check_cubin(changed(cubin, words))


def test_a_fence_with_other_stalls_than_ptxas_writes_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    place = int(places(words, MEMBAR)[0])
    encoding.STALL.put(words[place : place + 1], 2)
    with pytest.raises(MachineCodeError, match="no barrier and fence before it"):
        check_cubin(changed(cubin, words))


def test_a_load_from_another_block_outside_of_the_barriers_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    load, arrive = int(places(words, LD)[0]), int(places(words, UCGABAR_ARRIVE)[0])
    words[[load, arrive - 4]] = words[[arrive - 4, load]]
    assert any("loads from another block" in each.reason for each in check(words, cubin.registers, SM_90))


def test_a_load_from_another_block_without_any_barrier_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    for opcode in (UCGABAR_ARRIVE, UCGABAR_WAIT, CCTL, MEMBAR, ERRBAR, CGAERRBAR):
        words[places(words, opcode)] = nothing(words)
    found = [each for each in check(words, cubin.registers, SM_90) if "with no barrier and fence" in each.reason]
    assert len(found) == len(places(words, LD))


def test_a_store_to_shared_memory_that_others_load_from_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    load = int(places(words, LD)[-1])
    words[load] = words[int(places(words, STS_PLAIN)[-1])]
    assert any("where other blocks load from it" in each.reason for each in check(words, cubin.registers, SM_90))


def test_a_guarded_part_of_a_cluster_barrier_is_refused(cubin: CubinFile) -> None:
    words = cubin.words
    place = int(places(words, UCGABAR_WAIT)[0])
    encoding.PREDICATE.put(words[place : place + 1], 0)
    with pytest.raises(MachineCodeError, match="guarded by a predicate"):
        check_cubin(changed(cubin, words))
