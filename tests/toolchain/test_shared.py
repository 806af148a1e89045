"""Templates and cubins that tests share are made once in a run, by the process that needs them first."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.model_zoo import random_weights
from codegen.ptx.rewrite import rewrite
from codegen.toolchain.ptxas import assemble, ptxas_options
from codegen.toolchain.tools import find_toolchain
from tests import templates
from tests.gpu.layers import ODD_LAYERS
from tests.templates import LIMITS, SharedFolder, shared_cubin, shared_template

ODD = ODD_LAYERS["pointwise, 16 bytes a copy"]


def test_a_cubin_that_is_there_needs_no_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedFolder, "path", tmp_path)
    tools = find_toolchain()
    kernel = rewrite(shared_template(ODD.spec, ODD.tiling), random_weights(ODD.spec, 0.5))
    first = shared_cubin(kernel.ptx, "sm_90", tools)
    assert first == assemble(kernel.ptx, "sm_90", tools, ptxas_options(3), LIMITS).data
    monkeypatch.delattr(templates, "assemble")
    assert shared_cubin(kernel.ptx, "sm_90", tools) == first


def test_a_template_that_is_there_needs_no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedFolder, "path", tmp_path)
    tools = find_toolchain()
    first = shared_template(ODD.spec, ODD.tiling, "compute_75", tools)
    shared_template.cache_clear()  # as in another process
    monkeypatch.delattr(templates, "make_template")
    assert shared_template(ODD.spec, ODD.tiling, "compute_75", tools).ptx == first.ptx
