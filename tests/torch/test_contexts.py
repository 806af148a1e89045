"""A launch by the driver finds its context in every thread, also where PyTorch has called nothing of CUDA yet."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from farm.torch import contexts
from farm.torch.contexts import launching_on

PRIMARY = 0x1000


class PlayedDriver:
    """Contexts by thread; of GPU 0 only the primary one."""

    def __init__(self, current: int | None = None) -> None:
        self.current = current
        self.calls: list[str] = []

    def __call__(self, name: str, *arguments: Any) -> None:
        self.calls.append(name)
        match name, arguments:
            case "cuCtxGetCurrent", (pointer,):
                pointer._obj.value = self.current
            case "cuDevicePrimaryCtxRetain", (pointer, 0):
                pointer._obj.value = PRIMARY
            case "cuCtxSetCurrent", (context,):
                self.current = ctypes.cast(context, ctypes.c_void_p).value


def launch_twice() -> None:
    for _ in range(2):
        with launching_on(0):
            pass


def in_a_new_thread(monkeypatch: pytest.MonkeyPatch, driver: PlayedDriver) -> PlayedDriver:
    monkeypatch.setattr(contexts, "call", driver)
    monkeypatch.setattr(contexts.torch.cuda, "current_device", lambda: 0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(launch_twice).result()
    return driver


def test_a_thread_without_a_context_is_given_the_gpus_own_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = in_a_new_thread(monkeypatch, PlayedDriver())
    assert driver.current == PRIMARY
    assert driver.calls.count("cuCtxSetCurrent") == driver.calls.count("cuCtxGetCurrent") == 1


def test_a_thread_keeps_the_context_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = in_a_new_thread(monkeypatch, PlayedDriver(current=7))
    assert (driver.current, driver.calls) == (7, ["cuCtxGetCurrent"])


def test_another_gpu_than_the_threads_is_made_current_while_something_is_launched_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(contexts, "call", PlayedDriver(current=7))
    monkeypatch.setattr(contexts.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(contexts.torch.cuda, "device", lambda device: given.append(device) or nullcontext())
    for device in (1, 0):
        with launching_on(device):
            pass
    assert given == [1]
