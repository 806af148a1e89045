"""A GPU: loads a cubin, launches it, gives the output back. The only importer of PyCUDA."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from codegen.errors import DeviceError
from codegen.launch import Launch
from codegen.layers import FloatArray

_POISON = 0x7FC00000
"""A NaN: an output that the kernel does not write stays one."""


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on the GPU: call it with device addresses; it runs on the given stream, or the default one."""

    _function: Any
    _launch: Launch

    def __call__(self, source: int, target: int, batch: int, stream: Any = None) -> None:
        self._function(
            np.uint64(source),
            np.uint64(target),
            grid=self._launch.grid_at(batch),
            block=self._launch.block,
            shared=self._launch.shared_bytes,
            stream=stream,
        )


class Device:
    """The first GPU, for as long as the `with` block lasts. Raises DeviceError where there is none."""

    def __init__(self) -> None:
        try:
            from pycuda import driver
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

    def __enter__(self) -> Self:
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

    def new_stream(self) -> Any:
        """A stream of PyCUDA's; its `handle` is what other libraries take."""
        return self._driver.Stream()

    def load(self, cubin: bytes, launch: Launch) -> LoadedKernel:
        """Loads a cubin for repeated launches."""
        try:
            return LoadedKernel(self._driver.module_from_buffer(cubin).get_function(launch.kernel), launch)
        except self._driver.Error as error:
            raise DeviceError(
                f"the cubin of {launch.kernel} does not load on {self.name} ({self.arch}): {error}"
            ) from None

    def run(self, cubin: bytes, launch: Launch, x: FloatArray, output_shape: tuple[int, ...]) -> FloatArray:
        """Runs a layer on a batch [N, C, H, W]; gives the output, NaN where the kernel wrote nothing."""
        driver = self._driver
        kernel = self.load(cubin, launch)
        output = np.empty((len(x), *output_shape), dtype=np.float32)
        try:
            source, target = driver.mem_alloc(x.nbytes), driver.mem_alloc(output.nbytes)
            driver.memcpy_htod(source, np.ascontiguousarray(x))
            driver.memset_d32(target, _POISON, output.size)
            kernel(int(source), int(target), len(x))
            driver.Context.synchronize()
            driver.memcpy_dtoh(output, target)
        except driver.Error as error:
            raise DeviceError(f"{launch.kernel} did not run on {self.name}: {error}") from None
        return output
