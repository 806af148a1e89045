"""A GPU: loads a cubin, launches it, gives the output back. The only importer of PyCUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codegen.errors import DeviceError
from codegen.launch import Launch

_POISON = 0xFF
"""A NaN of such bytes in every data type: an output that no kernel writes stays one."""


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel on the GPU: call it with device addresses; it runs on the given stream, or the default one."""

    _function: Any
    _launch: Launch

    def __call__(self, source: int, target: int, batch: int, stream: Any = None, residual: int | None = None) -> None:
        values = {"input": source, "output": target, "residual": residual or 0}
        arguments = [
            np.int32(batch) if name == "images" else np.uint64(values[name]) for name in self._launch.arguments
        ]
        self._function(
            *arguments,
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

    def run_layer(
        self,
        kernels: Sequence[tuple[bytes, Launch]],
        x: NDArray[Any],
        output_shape: tuple[int, ...],
        residual: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Runs all parts of a layer on a batch [N, ...]; gives the output, NaN where no kernel wrote anything."""
        driver = self._driver
        loaded = [self.load(cubin, launch) for cubin, launch in kernels]
        output = np.empty((len(x), *output_shape), dtype=x.dtype)
        try:
            source, target = driver.mem_alloc(x.nbytes), driver.mem_alloc(output.nbytes)
            driver.memcpy_htod(source, np.ascontiguousarray(x))
            added = None if residual is None else driver.mem_alloc(residual.nbytes)
            if added is not None:
                driver.memcpy_htod(added, np.ascontiguousarray(residual))
            driver.memset_d8(target, _POISON, output.nbytes)
            for kernel in loaded:
                kernel(int(source), int(target), len(x), residual=None if added is None else int(added))
            driver.Context.synchronize()
            driver.memcpy_dtoh(output, target)
        except driver.Error as error:
            raise DeviceError(f"{kernels[0][1].kernel} did not run on {self.name}: {error}") from None
        return output
