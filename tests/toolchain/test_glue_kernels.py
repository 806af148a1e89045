"""The kernels beside the compiled layers are compiled ahead: their PTX is what nvcc makes of their source."""

from __future__ import annotations

from pathlib import Path

import pytest

import farm.runtime
from codegen.ptx.template import canonical
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import ToolLimits, find_toolchain, run_tool
from farm.runtime.glue_kernels import glue_entry, glue_ptx

SOURCE = Path(farm.runtime.__file__).parent / "glue.cu"


def test_the_ptx_is_what_nvcc_makes_of_the_source(tmp_path: Path) -> None:
    output = tmp_path / "glue.ptx"
    command = [find_toolchain().nvcc, "-ptx", "-O3", "-std=c++17", "-arch=compute_75", "-o", output, SOURCE]
    run_tool([str(each) for each in command], limits=ToolLimits(120))
    made = canonical(output.read_text())
    assert glue_ptx().decode() == made, (
        f"write it again: nvcc as above, then codegen.ptx.template.canonical, to {SOURCE}"
    )


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_the_ptx_becomes_code_for_every_gpu(arch: str) -> None:
    toolchain = find_toolchain()
    code = assemble(glue_ptx(), arch, toolchain)
    assert code.spill_bytes == 0


@pytest.mark.parametrize("name", ["max_pool_float32", "max_pool_bfloat16", "gemm_float16"])
def test_one_kernel_alone_becomes_code(name: str) -> None:
    code = assemble(glue_entry(name), "sm_90", find_toolchain())
    assert name.encode() in code.data
    assert b"softmax" not in code.data
