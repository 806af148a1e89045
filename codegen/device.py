"""A GPU: loads a cubin, launches it, gives the output back. The only importer of PyCUDA."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy as np

from codegen.errors import DeviceError
from codegen.launch import Launch
from codegen.layers import FloatArray

_POISON = 0x7FC00000
"""A NaN: an output that the kernel does not write stays one."""


class Device:
    """The first GPU, for as long as the `with` block lasts. Raises DeviceError where there is none."""

    def __init__(self) -> None:
        try:
            import pycuda.driver as driver
        except ImportError as error:
            raise DeviceError(
                f"PyCUDA cannot be used here ({error}): install the extra 'gpu' on a machine with an NVIDIA driver"
            ) from None
        self._driver: Any = driver
        try:
            driver.init()
            self._device = driver.Device(0)
            self._context = self._device.retain_primary_context()
        except driver.Error as error:
            raise DeviceError(f"no GPU can be used here ({error}): run this on a machine with one") from None

    def __enter__(self) -> Device:
        self._context.push()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.pop()

    @property
    def name(self) -> str:
        return str(self._device.name())

    @property
    def arch(self) -> str:
        """The architecture whose cubins it runs, as in sm_90."""
        major, minor = self._device.compute_capability()
        return f"sm_{major}{minor}"

    def run(self, cubin: bytes, launch: Launch, x: FloatArray, output_shape: tuple[int, ...]) -> FloatArray:
        """Runs a layer on a batch [N, C, H, W]; gives the output, NaN where the kernel wrote nothing."""
        driver = self._driver
        output = np.empty((len(x), *output_shape), dtype=np.float32)
        try:
            function = driver.module_from_buffer(cubin).get_function(launch.kernel)
            source, target = driver.mem_alloc(x.nbytes), driver.mem_alloc(output.nbytes)
            driver.memcpy_htod(source, np.ascontiguousarray(x))
            driver.memset_d32(target, _POISON, output.size)
            function(source, target, grid=launch.grid_at(len(x)), block=launch.block, shared=launch.shared_bytes)
            driver.Context.synchronize()
            driver.memcpy_dtoh(output, target)
        except driver.Error as error:
            raise DeviceError(f"{launch.kernel} did not run on {self.name}: {error}") from None
        return output
