"""Every odd layer on the GPU, or layers assembled without ptxas, for NVIDIA's compute-sanitizer to watch.

    SANITIZER="compute-sanitizer --target-processes application-only --error-exitcode 1"
    $SANITIZER --tool memcheck python -m tests.gpu.sanitizer_run
    $SANITIZER --tool racecheck python -m tests.gpu.sanitizer_run
    $SANITIZER --tool memcheck python -m tests.gpu.sanitizer_run --direct 30
    $SANITIZER --tool racecheck python -m tests.gpu.sanitizer_run --direct 30
    $SANITIZER --tool synccheck python -m tests.gpu.sanitizer_run --direct 30

Needs a GPU and PyCUDA. The exit code is 1 if an output is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys

from codegen.sass.qualification import supported_data_types
from farm.cuda.device import Device
from farm.qualification.build import BuildPool
from farm.qualification.comparator import GpuComparator
from tests.gpu.layers import ODD_LAYERS, weights_of
from tests.gpu.workbench import LIMITS, Workbench, any_toolchain

VIRTUAL_ARCHS = ("compute_75", "compute_80")
DIRECT_VARIANTS = 12
"""Layers of each shape: those with odd masks come first."""


def odd_layers(device: Device) -> bool:
    right = True
    workbench = Workbench(device, any_toolchain(), lambda *_: None)
    for name, odd in ODD_LAYERS.items():
        for virtual_arch in VIRTUAL_ARCHS:
            weights = weights_of(odd.spec, 0.5)
            found = workbench.check(odd.spec, odd.tiling, weights, odd.batch, virtual_arch)
            right &= found.ok
            print(f"{virtual_arch}  {name}: {found.message or f'right, {found.bound_share:.3f} of its bound'}")
    return right


def direct_layers(device: Device, shapes: int, first: int) -> bool:
    """Runs both builds of layers of the qualification corpus."""
    layers = differing = refused = 0
    with BuildPool(os.cpu_count() or 1, device.arch, any_toolchain(), LIMITS) as builder:
        builds = [
            builder.submit(number, data_type, DIRECT_VARIANTS)
            for number in range(first, first + shapes)
            for data_type in supported_data_types(device.arch)
        ]
        for future in builds:
            built = future.result()
            refused += built.refused.total()
            if built.shape is not None:
                for each in GpuComparator(device).compare(built.shape, built.layers):
                    layers += 1
                    differing += each.differing > 0
                print(f"{built.shape.name}: {built.shape.spec}, {len(built.layers)} layers run", flush=True)
    print(f"{layers} direct layers, {differing} that differ from ptxas's, {refused} left to ptxas")
    return layers > 0 and not differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--direct", type=int, default=0, help="so many shapes of layers assembled without ptxas")
    parser.add_argument("--first", type=int, default=0, help="number of the first shape")
    arguments = parser.parse_args()
    with Device() as device:
        right = direct_layers(device, arguments.direct, arguments.first) if arguments.direct else odd_layers(device)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
