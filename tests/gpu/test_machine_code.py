"""Cubins that are made without ptxas compute, bit for bit, what ptxas's do."""

from __future__ import annotations

import pytest

from codegen.machine.admission import ARCHITECTURES
from codegen.toolchain import Toolchain
from farm.gpu.device import Device
from tests.gpu.machine_check import check

SECONDS = 20.0


def test_layers_assembled_directly_give_the_bits_that_ptxas_gives(device: Device, toolchain: Toolchain) -> None:
    if device.arch not in ARCHITECTURES:
        pytest.skip(f"the assembler does not know {device.arch}")
    compared = check(device, toolchain, SECONDS)
    assert compared
    assert [each.line for each in compared if each.differing] == []
