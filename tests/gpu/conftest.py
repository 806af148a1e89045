"""These tests need an NVIDIA GPU, its driver and PyCUDA (the extra `gpu`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codegen.device import Device
from codegen.errors import DeviceError


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    try:
        found = Device()
    except DeviceError as error:
        pytest.skip(f"needs a GPU: {error}")
    with found:
        yield found
