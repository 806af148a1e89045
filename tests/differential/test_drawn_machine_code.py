"""Drawn layers as direct machine code of each architecture, beside their PTX: the words emulator sees equal bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.sass.qualification import SUPPORTED_ARCHS
from codegen.selection.code_size import DIRECT_INSTRUCTIONS
from codegen.toolchain.tools import find_toolchain
from farm.qualification.corpus import draw_shape
from tests.differential import emulated_corpus
from tests.differential.drawn_layers import DrawnLayer, Recipe
from tests.differential.emulated_corpus import Outcomes, Task, compare, compared
from tests.differential.geometries import Geometry
from tests.differential.listed_geometries import GEOMETRIES
from tests.differential.machine_code import MachineCode

EVERY = 9
"""Each architecture runs every ninth listed geometry, starting at a different one."""


@pytest.mark.parametrize("arch", SUPPORTED_ARCHS)
def test_drawn_layers_compute_in_machine_code_what_their_ptx_does(arch: str) -> None:
    code = MachineCode((arch,))
    chosen = list(GEOMETRIES.values())[SUPPORTED_ARCHS.index(arch) % EVERY :: EVERY]
    for number, geometry in enumerate(chosen):
        assert code.agreement(DrawnLayer(geometry, Recipe(number, sparsity=0.5))).ok
    assert code.equal[arch] > code.refused.total(), str(code)


def test_a_uniform_register_that_few_lanes_write_is_the_whole_warps() -> None:
    """ptxas keeps descriptors in registers, and moves them with a predicate."""
    code, geometry = MachineCode(("sm_86",)), Geometry("Conv", 32, 2, (357,), (7,), (3,), (0, 0), group=2, batch=1)
    assert code.agreement(DrawnLayer(geometry, Recipe(1505), place=0.251)).ok
    assert code.equal["sm_86"] == 1


def test_another_bit_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = MachineCode(("sm_80",))
    monkeypatch.setattr("tests.differential.machine_code.emulate.run", lambda *_: None)
    with pytest.raises(AssertionError, match="sm_80"):
        code.agreement(DrawnLayer(GEOMETRIES["residual after batch normalisation"], Recipe(3)))


LINEAR_CLUSTER_SHAPE = 13
WAITING_SHAPE = 5
"""One without a cluster."""


def test_the_corpus_in_the_emulator_counts_the_layers_of_each_assembler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(emulated_corpus, "LAYERS_PER_SHAPE", 8)
    monkeypatch.setattr(emulated_corpus, "PTXAS_EVERY", 2)
    archs, outcomes = ("sm_89", "sm_90", "sm_120"), Outcomes()
    task = Task(LINEAR_CLUSTER_SHAPE, "float32", archs, find_toolchain(), DIRECT_INSTRUCTIONS)
    with (tmp_path / "results").open("a") as results:
        compare([task], 1, outcomes, results)
    assert {arch: outcomes.equal[arch, "direct"] for arch in archs} == dict.fromkeys(archs, 4)
    assert {arch: outcomes.equal[arch, "ptxas"] for arch in archs} == {"sm_89": 1, "sm_90": 2, "sm_120": 1}
    assert not outcomes.different
    assert compared(tmp_path / "results") == {task.name: outcomes}
    monkeypatch.setattr(emulated_corpus.sass, "run", lambda *_: None)
    assert task.outcomes().different.total() == 16


def test_the_corpus_in_the_emulator_has_kernels_that_begin_early(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = draw_shape(WAITING_SHAPE, "float32")
    assert shape is not None
    assert shape.tiling.waits
    monkeypatch.setattr(emulated_corpus, "LAYERS_PER_SHAPE", 2)
    outcomes = Task(WAITING_SHAPE, "float32", ("sm_90",), find_toolchain(), DIRECT_INSTRUCTIONS).outcomes()
    assert outcomes.equal["sm_90", "direct"]
    assert not outcomes.refused
    assert not outcomes.different


def test_the_corpus_in_the_emulator_leaves_out_longer_shapes() -> None:
    task = Task(LINEAR_CLUSTER_SHAPE, "float32", SUPPORTED_ARCHS, find_toolchain(), 10)
    assert task.outcomes() == Outcomes()
