"""Requirements of test folders that a machine lacks, which are the reasons for skipping them."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
from collections.abc import Callable
from functools import cache

from codegen.errors import ToolchainError
from codegen.toolchain.tools import find_toolchain
from tests.services.ceph import lacks_ceph
from tests.services.postgresql import lacks_postgresql

CHROMIUM = "chromium"


@cache
def lacks_toolchain() -> str | None:
    try:
        find_toolchain()
    except ToolchainError as error:
        return f"needs the CUDA toolchain: {error}"
    return None


def lacks_ray() -> str | None:
    return None if importlib.util.find_spec("ray") else "needs Ray: it is not installed"


def lacks_torch() -> str | None:
    return None if importlib.util.find_spec("torch") else "needs PyTorch: make torch"


def lacks_chromium() -> str | None:
    return None if shutil.which(CHROMIUM) else "needs Debian's chromium: make services"


def lacks_gpu() -> str | None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "needs an NVIDIA GPU and its driver"
    return None


def lacks_wish_to_install() -> str | None:
    return "downloads packages: make test-packages"


def lacks_wish_for_models() -> str | None:
    return "downloads models: make test-models"


NEEDS: dict[str, tuple[Callable[[], str | None], ...]] = {
    "browser": (lacks_chromium,),
    "chaos": (lacks_toolchain, lacks_ray, lacks_ceph, lacks_postgresql),
    "cluster": (lacks_ray, lacks_ceph, lacks_postgresql),
    "differential": (lacks_toolchain,),
    "digits": (lacks_toolchain, lacks_torch),
    "gpu": (lacks_gpu,),
    "models": (lacks_toolchain,),
    "packages": (lacks_wish_to_install,),
    "real_models": (lacks_toolchain, lacks_wish_for_models),
    "services": (lacks_ceph, lacks_postgresql),
    "toolchain": (lacks_toolchain,),
    "torch": (lacks_torch,),
}
"""By folder of tests/, the checks of what its tests need; some tests of a folder may need less."""


def missing(folder: str) -> list[str]:
    """Reasons for which some or all tests of a folder will be skipped."""
    return [reason for lacks in NEEDS.get(folder, ()) if (reason := lacks())]
