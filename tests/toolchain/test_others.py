"""The kernel that stands for a network's other layers: the driver compiles it on a GPU, here ptxas does."""

from __future__ import annotations

import pytest

from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from farm.cuda.measure.code_sizes import machine_instructions
from farm.cuda.measure.other_layers import CODE_INSTRUCTIONS, ptx


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_it_has_more_code_than_a_multiprocessor_keeps_on_every_architecture(arch: str) -> None:
    cubin = assemble(ptx().encode(), arch, find_toolchain())
    assert cubin.spill_bytes == 0
    assert CODE_INSTRUCTIONS < machine_instructions(cubin.data) < 1.1 * CODE_INSTRUCTIONS
    assert 16 * CODE_INSTRUCTIONS >= 2 * 128 * 1024
