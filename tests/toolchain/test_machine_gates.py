"""Layers whose input is multiplied by gates, without ptxas: what is multiplied, by what, and only where it is used."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from codegen import emulate as ptx
from codegen.assemble import assemble, skeleton_options
from codegen.errors import MachineCodeError
from codegen.launch import Launch
from codegen.layers import Weights
from codegen.machine import emulate, word
from codegen.machine.admission import unknown
from codegen.machine.assembler import DirectAssembler, make_skeleton
from codegen.machine.elf import CubinFile
from codegen.machine.proof import prove
from codegen.operators import stream_count
from codegen.rewrite import rewrite
from codegen.template import Template
from codegen.tiling import Part
from codegen.toolchain import find_toolchain
from codegen.verify import poisoned, random_gate, random_input, random_residual, verify_layer
from tests.templates import shared_template
from tests.toolchain.gate_cases import GATE_CASES

ARCH = "sm_90"
DIRECT = [name for name, case in GATE_CASES.items() if case.spec.data_type != "float16"]
ONE_ROW, TWO_ROWS = "gates", "gates, stride 2, two rows a thread"
SEVERAL_IMAGES = "gates and a residual, several images a block"
CLUSTER = "gates in a cluster, tiles of a map"
MASKS = ("no weight", "one weight", "one channel of four", "one chunk empty", "no zero")


def template_for(name: str) -> Template:
    case = GATE_CASES[name]
    virtual = "compute_90" if case.tiling.cluster > 1 else "compute_80"
    return shared_template(case.spec, case.tiling, virtual)


@cache
def skeleton_of(name: str) -> bytes:
    options = skeleton_options(("-O3",), clusters=GATE_CASES[name].tiling.cluster > 1)
    return make_skeleton(template_for(name), ARCH, find_toolchain(), options).data


def weights_of(name: str, density: float, mask: str = "no zero") -> Weights:
    spec, rng = GATE_CASES[name].spec, np.random.default_rng(3)
    kernel = rng.standard_normal(spec.weights_shape, dtype=np.float32)
    kept = rng.random(spec.weights_shape) < density
    channels = np.arange(spec.weights_shape[1])
    match mask:
        case "no weight":
            kept[:] = False
        case "one weight":
            kept[:] = False
            kept[1, 2] = True
        case "one channel of four":
            kept[:, channels % 4 != 1] = False
        case "one chunk empty":
            chunk = GATE_CASES[name].tiling.chunk_channels
            kept[:, (channels >= chunk) & (channels < 2 * chunk)] = False
    return Weights(np.where(kept, kernel, np.float32(0)), rng.standard_normal(spec.kernels, dtype=np.float32))


def directly(name: str, weights: Weights) -> CubinFile:
    template = template_for(name)
    whole = Part(0, stream_count(template.spec, template.tiling))
    return CubinFile.read(DirectAssembler.of(template, skeleton_of(name), ARCH).assemble(weights, whole).data)


def arguments(name: str, launch: Launch) -> tuple[NDArray[Any], list[NDArray[Any] | int]]:
    case = GATE_CASES[name]
    output = poisoned(case.spec, case.batch)
    named: dict[str, Any] = {"input": random_input(case.spec, case.batch, seed=1), "output": output}
    named |= {"residual": random_residual(case.spec, case.batch, seed=0)}
    named |= {"gate": random_gate(case.spec, case.batch, seed=0), **launch.numbers(case.batch)}
    return output, [named[each] for each in launch.arguments]


def computed(name: str, weights: Weights, cubin: CubinFile) -> NDArray[Any]:
    launch = rewrite(template_for(name), weights).launch
    output, given = arguments(name, launch)
    emulate.run(cubin, launch.grid_at(GATE_CASES[name].batch), launch.block, launch.shared_bytes, given)
    return output.view(f"u{output.dtype.itemsize}")


def expected(name: str, weights: Weights) -> NDArray[Any]:
    """What the rewritten PTX computes."""
    kernel = rewrite(template_for(name), weights)
    output, given = arguments(name, kernel.launch)
    grid = kernel.launch.grid_at(GATE_CASES[name].batch)
    ptx.run(kernel.ptx, grid, kernel.launch.block, kernel.launch.shared_bytes, given)
    return output.view(f"u{output.dtype.itemsize}")


@pytest.mark.parametrize("name", DIRECT)
@pytest.mark.parametrize("density", [0.15, 0.6])
def test_inputs_times_their_gates_give_bit_for_bit_what_the_ptx_does(name: str, density: float) -> None:
    weights = weights_of(name, density)
    np.testing.assert_array_equal(computed(name, weights, directly(name, weights)), expected(name, weights))


@pytest.mark.parametrize("name", [ONE_ROW, TWO_ROWS, SEVERAL_IMAGES, CLUSTER])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_at_their_edges_give_bit_for_bit_what_the_ptx_does(name: str, mask: str) -> None:
    weights = weights_of(name, 1.0, mask)
    np.testing.assert_array_equal(computed(name, weights, directly(name, weights)), expected(name, weights))


@pytest.mark.parametrize("name", [ONE_ROW, CLUSTER])
def test_the_words_of_ptxas_compute_what_those_made_without_it_do(name: str) -> None:
    weights = weights_of(name, 0.5)
    by_ptxas = CubinFile.read(assemble(rewrite(template_for(name), weights).ptx, ARCH, find_toolchain()).data)
    prove(by_ptxas)
    np.testing.assert_array_equal(computed(name, weights, by_ptxas), computed(name, weights, directly(name, weights)))


def test_an_input_without_weights_is_neither_loaded_nor_multiplied() -> None:
    def count(weights: Weights, opcode: int) -> int:
        return int((word.OPCODE.get(directly(ONE_ROW, weights).words) == opcode).sum())

    case = GATE_CASES[ONE_ROW]
    weights, groups = weights_of(ONE_ROW, 1.0), -(-case.spec.kernels // case.tiling.group_kernels)
    fewer = Weights(weights.kernel.copy(), weights.bias)
    fewer.kernel[:, 4:8] = 0
    fewer.kernel[:, 9] = 0
    assert count(weights, word.FMUL) - count(fewer, word.FMUL) == 5 * groups
    # Each input has a load of its own; the gates of four come in one, and where three are used still do.
    assert count(weights, word.LDS) - count(fewer, word.LDS) == 6 * groups


def test_a_gate_that_is_read_before_it_is_waited_for_is_not_proved() -> None:
    made = directly(ONE_ROW, weights_of(ONE_ROW, 1.0))
    words = made.words
    place = int(np.flatnonzero(word.OPCODE.get(words) == word.FMUL)[0])
    word.WAIT.put(words[place : place + 1], 0)
    with pytest.raises(MachineCodeError, match=r"reads R\d+ before word \d+ is waited for"):
        prove(CubinFile.read(made.with_words(words)))


def test_a_product_that_is_read_too_soon_is_not_proved() -> None:
    made = directly(ONE_ROW, weights_of(ONE_ROW, 1.0, "one weight"))
    words = made.words
    place = int(np.flatnonzero(word.OPCODE.get(words) == word.FMUL)[0])
    assert int(word.STALL.get(words)[place]) > 1
    word.STALL.put(words[place : place + 1], 1)
    with pytest.raises(MachineCodeError, match=r"reads R\d+ 1 cycles after"):
        prove(CubinFile.read(made.with_words(words)))


def test_another_gate_is_found_by_the_emulator() -> None:
    weights = weights_of(ONE_ROW, 1.0)
    template, made = template_for(ONE_ROW), directly(ONE_ROW, weights)
    whole = [Part(0, stream_count(template.spec, template.tiling))]
    assert verify_layer(template, weights, whole, cubins=[made.data]).ok
    words = made.words
    place = int(np.flatnonzero(word.OPCODE.get(words) == word.FMUL)[0])
    word.SOURCE_B.put(words[place : place + 1], word.SOURCE_B.get(words)[place] + 1)
    assert not verify_layer(template, weights, whole, cubins=[made.with_words(words)]).ok


def test_gates_of_float16_are_left_to_ptxas_with_the_reason() -> None:
    [name, *_] = [name for name, case in GATE_CASES.items() if case.spec.data_type == "float16"]
    case = GATE_CASES[name]
    assert "gates of float16" in unknown(case.spec, case.tiling, ARCH)
    with pytest.raises(MachineCodeError, match="gates of float16"):
        make_skeleton(template_for(name), ARCH, find_toolchain())
