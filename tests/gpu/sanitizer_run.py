"""Every odd layer on the GPU, for NVIDIA's compute-sanitizer to watch.

    SANITIZER="compute-sanitizer --target-processes application-only --error-exitcode 1"
    $SANITIZER --tool memcheck python -m tests.gpu.sanitizer_run
    $SANITIZER --tool racecheck python -m tests.gpu.sanitizer_run

Needs a GPU and PyCUDA. The exit code is 1 if an output is wrong.
"""

from __future__ import annotations

import sys

from farm.gpu.device import Device
from tests.gpu.layers import ODD_LAYERS, weights_of
from tests.gpu.workbench import Workbench, any_toolchain

VIRTUAL_ARCHS = ("compute_75", "compute_80")


def main() -> int:
    right = True
    with Device() as device:
        workbench = Workbench(device, any_toolchain(), lambda *_: None)
        for name, odd in ODD_LAYERS.items():
            for virtual_arch in VIRTUAL_ARCHS:
                weights = weights_of(odd.spec, 0.5)
                found = workbench.check(odd.spec, odd.tiling, weights, odd.batch, virtual_arch)
                right &= found.ok
                print(f"{virtual_arch}  {name}: {found.message or f'right, {found.bound_share:.3f} of its bound'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
