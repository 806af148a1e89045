"""These tests need an NVIDIA GPU, its driver and PyCUDA (the extra `gpu`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen.device import Device
from codegen.errors import DeviceError, ToolchainError
from codegen.toolchain import Toolchain, find_toolchain


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
        return find_toolchain()
    except ToolchainError:
        nvcc = shutil.which("nvcc")
        if nvcc is None:
            pytest.skip("needs nvcc: the pinned wheels or a system CUDA")
        return find_toolchain(Path(nvcc).resolve())
