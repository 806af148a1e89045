"""The CUDA driver API by ctypes, without a driver."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

import farm
from codegen.errors import DeviceError
from farm.cuda import driver
from farm.cuda.module import check_resident, launch


def test_every_function_that_is_called_has_a_signature() -> None:
    sources = [path.read_text() for path in Path(farm.__file__).parent.rglob("*.py")]
    called = {name for text in sources for name in re.findall(r'\b(?:call|function)\(\s*"(cu\w+)"', text)}
    assert "cuLaunchKernel" in called
    assert called <= driver._SIGNATURES.keys()


@pytest.mark.parametrize("overlapping", [False, True])
def test_a_launch_passes_grid_block_shared_memory_and_arguments(
    overlapping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class Function:
        argtypes: tuple[Any, ...] = ()
        restype: Any = None

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, *arguments: Any) -> int:
            for kind, argument in zip(self.argtypes, arguments, strict=True):
                kind.from_param(argument)
            calls.append((self.name, *arguments))
            return 0

    class Library:
        def __getattr__(self, name: str) -> Function:
            return Function(name)

    monkeypatch.setattr(driver, "driver", Library)
    driver.function.cache_clear()
    launch(ctypes.c_void_p(7), (4, 1, 64), (512, 1, 1), 48, [ctypes.c_int32(5)], 9, overlapping=overlapping)
    driver.function.cache_clear()
    [(name, *arguments)] = calls
    if not overlapping:
        assert (name, arguments[1:9]) == ("cuLaunchKernel", [4, 1, 64, 512, 1, 1, 48, 9])
        return
    how = arguments[0]._obj
    assert name == "cuLaunchKernelEx"
    assert ([*how.grid], [*how.block], how.shared_bytes, how.stream) == ([4, 1, 64], [512, 1, 1], 48, 9)
    assert how.count == 1
    assert (how.attributes[0].id, how.attributes[0].value[0]) == (6, 1)
    assert ctypes.sizeof(how) == 56
    assert ctypes.sizeof(how.attributes[0]) == 72


def test_a_grid_whose_blocks_wait_for_each_other_is_refused_unless_all_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Library:
        @staticmethod
        def cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: Any, function: ctypes.c_void_p, threads: int, shared_bytes: int
        ) -> int:
            blocks._obj.value = 2 if threads * shared_bytes <= 512 * 1024 else 0
            return 0

    monkeypatch.setattr(driver, "function", lambda name: getattr(Library, name))
    kernel = ctypes.c_void_p(7)
    check_resident(kernel, (4, 1, 66), 512, 1024, 132)
    for grid, shared_bytes, fit in (((4, 1, 67), 1024, 264), ((1, 1, 1), 2048, 0)):
        with pytest.raises(DeviceError, match=f"blocks wait for each other and {fit} run at once .* 132 multi"):
            check_resident(kernel, grid, 512, shared_bytes, 132)
