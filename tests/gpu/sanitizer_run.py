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

from codegen.sass.qualification import claimed_types
from farm.cuda.device import Device
from farm.qualification.both_ways import Makers
from farm.qualification.gpu import GpuBench
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
    """Layers of `farm admit`, with ptxas's code beside the direct one."""
    layers = differing = refused = 0
    with Makers(os.cpu_count() or 1, device.arch, any_toolchain(), LIMITS) as makers:
        begun = [
            makers.begin(number, data_type, DIRECT_VARIANTS)
            for number in range(first, first + shapes)
            for data_type in claimed_types(device.arch)
        ]
        for future in begun:
            made = future.result()
            refused += made.refused.total()
            if made.shape is not None:
                for each in GpuBench(device).compare(made.shape, made.layers):
                    layers += 1
                    differing += each.differing > 0
                print(f"{made.shape.name}: {made.shape.spec}, {len(made.layers)} layers run", flush=True)
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
