"""Directly assembled cubins compute, bit for bit, the outputs of ptxas cubins."""

from __future__ import annotations

import os

import pytest

from codegen.sass.qualification import SUPPORTED_ARCHS
from codegen.toolchain.tools import Toolchain
from farm.cuda.device import Device
from farm.qualification.build import BuildPool
from farm.qualification.comparator import GpuComparator
from farm.qualification.qualify import QualificationPlan, QualificationProgress, collect_outcome, compare_shapes
from tests.gpu.workbench import LIMITS

LAYERS = 120
"""Layers per data type: three shapes."""


def test_layers_assembled_directly_give_the_bits_that_ptxas_gives(device: Device, toolchain: Toolchain) -> None:
    if device.arch not in SUPPORTED_ARCHS:
        pytest.skip(f"the direct assembler does not support {device.arch}")
    plan, cores = QualificationPlan(layers=LAYERS), os.cpu_count() or 1
    with BuildPool(cores, device.arch, toolchain, LIMITS) as builder:
        events = compare_shapes(GpuComparator(device), builder, plan, toolchain.ptxas_version, ahead=cores)
        outcome = collect_outcome(events, plan, QualificationProgress())
    for tally in outcome.tallies.values():
        assert tally.layers
        assert tally.wrong == ()
