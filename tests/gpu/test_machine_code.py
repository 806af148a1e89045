"""Cubins that are made without ptxas compute, bit for bit, what ptxas's do."""

from __future__ import annotations

import os

import pytest

from codegen.sass.qualification import ARCHITECTURES
from codegen.toolchain.tools import Toolchain
from farm.cuda.device import Device
from farm.qualification.both_ways import Makers
from farm.qualification.gpu import GpuBench
from farm.qualification.qualify import TrialProgress, follow
from farm.qualification.run import TrialPlan, try_on
from tests.gpu.workbench import LIMITS

LAYERS = 120
"""Of each data type: three shapes."""


def test_layers_assembled_directly_give_the_bits_that_ptxas_gives(device: Device, toolchain: Toolchain) -> None:
    if device.arch not in ARCHITECTURES:
        pytest.skip(f"the assembler does not know {device.arch}")
    plan, cores = TrialPlan(layers=LAYERS), os.cpu_count() or 1
    with Makers(cores, device.arch, toolchain, LIMITS) as makers:
        events = try_on(GpuBench(device), makers, plan, toolchain.ptxas_version, ahead=cores)
        outcome = follow(events, plan, TrialProgress())
    for tried in outcome.tried.values():
        assert tried.layers
        assert tried.wrong == ()
