"""These tests need an NVIDIA GPU, its driver and PyCUDA (`make gpu`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from codegen.errors import DeviceError, ToolchainError
from codegen.toolchain.tools import Toolchain
from farm.cuda.device import Device
from tests.gpu.workbench import LAYER_RUN, Workbench, any_toolchain, summary


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    try:
        found = Device()
    except DeviceError as error:
        pytest.skip(f"needs a GPU: {error}")
    with found:
        yield found


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    try:
        return any_toolchain()
    except ToolchainError:
        pytest.skip("needs nvcc: the pinned wheels or a system CUDA")


@pytest.fixture
def inline_farm(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `farm` command keeps everything in the test's folder, and builds in its own process."""
    variables = {
        "XDG_DATA_HOME": str(tmp_path),
        "FARM_EXECUTOR": "inline",
        "FARM_NVCC": str(toolchain.nvcc),
        "FARM_PTXAS": str(toolchain.ptxas),
    }
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)


@pytest.fixture
def workbench(device: Device, toolchain: Toolchain, record_property: Callable[[str, object], None]) -> Workbench:
    return Workbench(device, toolchain, record_property)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the largest errors of the layers that all processes ran."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    runs = [json.loads(value) for each in reports for name, value in each.user_properties if name == LAYER_RUN]
    if runs:
        terminalreporter.section("layers run on the GPU")
        for line in summary(runs):
            terminalreporter.write_line(line)
