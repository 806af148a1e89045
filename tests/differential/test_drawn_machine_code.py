"""Drawn layers as direct machine code of each architecture, beside their PTX: the words emulator sees equal bits."""

from __future__ import annotations

import pytest

from codegen.sass.qualification import SUPPORTED_ARCHS
from tests.differential.drawn_layers import DrawnLayer, Recipe
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
