"""Messages where PyCUDA cannot be imported."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from codegen.errors import DeviceError
from farm.cuda.device import Device


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module named 'pycuda'"), r"No module named 'pycuda'\): in a checkout .* make gpu$"),
        (ImportError("libcuda.so.1: cannot open shared object file"), "comes with NVIDIA's driver, so run this on"),
    ],
    ids=["no PyCUDA", "no driver"],
)
def test_the_message_says_what_is_missing(error: ImportError, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def importing(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("pycuda"):
            raise error
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(DeviceError, match=said):
        Device()
