"""PyTorch on the GPU, imported on use: tensors over the farm's memory, references and timing."""

from __future__ import annotations

import math
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import AddResidual, Conv2d, ConvTranspose2d, DataType, LayerSpec
from farm.cuda.graph import REPLAYS, Gate, cool_down, launches_of

REFERENCE_BYTES = 2**31
"""Size of one slice of images in float64, input and output together."""
_TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<i2"}


class NoTorchError(Exception):
    """torch is unusable here, with the reason."""


class NotApplicableError(Exception):
    """A peer does not support a layer, with the reason."""


@dataclass(frozen=True)
class _Array:
    """Memory in terms of the CUDA array interface."""

    address: int
    shape: tuple[int, ...]
    data_type: DataType

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": _TYPES[self.data_type],
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }


class TorchGpu:
    """torch beside PyCUDA in the GPU's primary context, on one stream. Raises NoTorchError."""

    def __init__(self, stream_handle: int) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import torch
        except ImportError:
            raise NoTorchError("torch is not installed here") from None
        self.torch: Any = torch
        try:
            self.torch.zeros(1, device="cuda")
        except (RuntimeError, AssertionError) as error:
            raise NoTorchError(f"torch finds no GPU: {_first_line(error)}") from None
        self.stream = self.torch.cuda.ExternalStream(stream_handle)
        self.torch.backends.cudnn.benchmark = True
        self.allow_tf32(False)

    def versions(self) -> dict[str, str]:
        """Versions of torch and its libraries."""
        number = self.torch.backends.cudnn.version()
        cudnn = f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else "none"
        return {"torch": self.torch.__version__, "torch_cuda": str(self.torch.version.cuda), "cudnn": cudnn}

    def allow_tf32(self, allowed: bool) -> None:
        """Allows TF32 for cuDNN and cuBLAS."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch has old and new names for these switches
            self.torch.backends.cudnn.allow_tf32 = allowed
            self.torch.backends.cuda.matmul.allow_tf32 = allowed

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Runs torch on the session's stream, without its warnings on beta features."""
        with warnings.catch_warnings(), self.torch.cuda.stream(self.stream):
            warnings.simplefilter("ignore")
            yield

    def view(self, address: int, shape: tuple[int, ...], data_type: DataType) -> Any:
        """Tensor at a device address."""
        tensor = self.torch.as_tensor(_Array(address, shape, data_type), device="cuda")
        if tensor.data_ptr() != address:
            raise RuntimeError("torch copied what it was to use in place")
        return tensor.view(self.torch.bfloat16) if data_type == "bfloat16" else tensor

    def upload(self, values: Any) -> Any:
        """A NumPy array as a tensor on the GPU."""
        return self.torch.from_numpy(values).cuda()

    def microseconds(self, launch: Callable[[int], object], sets: int, gate: Gate) -> float:
        """Median time of one launch, from replays of a graph of many launches on rotated data sets.

        The last results are held, so that each data set has its own result memory. Raises errors of torch.
        """
        cuda = self.torch.cuda
        held: deque[object] = deque(maxlen=sets)
        with cuda.stream(self.stream):
            launch(0)  # cudnn.benchmark selects its algorithm here
            self.stream.synchronize()
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record(self.stream)
            for i in range(min(sets, 4)):
                launch(i)  # ungated, as torch may wait for the GPU here
            end.record(self.stream)
        end.synchronize()
        guess = max(1.0, begin.elapsed_time(end) * 1e3 / min(sets, 4))
        launches = launches_of(guess, sets)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=self.stream):
            for i in range(launches):
                held.append(launch(i % sets))
        times = []
        with cuda.stream(self.stream):
            graph.replay()
            self.stream.synchronize()
            for _ in range(REPLAYS):
                with gate.closed():
                    begin.record(self.stream)
                    graph.replay()
                    end.record(self.stream)
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e3)
                cool_down(times[-1])
        return float(statistics.median(times)) / launches

    def sums(self, spec: LayerSpec, kernel: Any, x: Any) -> Any:
        """Sums of a layer before bias and epilogue in float64, [N, K, H', W'] or [rows, K], some images at a time."""
        torch = self.torch
        weights = self.upload(kernel).double()
        output = torch.empty((len(x), *spec.output_shape), dtype=torch.float64, device="cuda")
        step = max(1, REFERENCE_BYTES // (8 * (math.prod(spec.input_shape) + math.prod(spec.output_shape))))
        torch.backends.cudnn.benchmark = False
        try:
            for first in range(0, len(x), step):
                output[first : first + step] = self.dense(spec, weights)(x[first : first + step].double())
        finally:
            torch.backends.cudnn.benchmark = True
        return output

    def finished(self, spec: LayerSpec, weights: Weights, sums: Any, residual: Any) -> Any:
        """Reference of a generated kernel: the sums with bias and epilogue, in float64."""
        from farm.bench.networks.torch_dense import applied

        bias = self.upload(weights.bias).double()
        values = sums + bias.reshape(-1, *[1] * (len(spec.output_shape) - 1))
        for step in spec.epilogue:
            values = values + residual.double() if isinstance(step, AddResidual) else applied(step, values)
        return values

    def relative_error(self, got: Any, reference: Any) -> float:
        """Norm of the difference over norm of the reference; NaN if an element was not written."""
        norm = self.torch.linalg.vector_norm
        scale = float(norm(reference))
        return float(norm(got.double() - reference)) / (scale or 1.0)

    def dense(self, spec: LayerSpec, weights: Any) -> Callable[[Any], Any]:
        """The layer without bias as one call of torch. Raises NotApplicableError."""
        functional = self.torch.nn.functional
        if isinstance(spec, Conv2d):
            top, left, bottom, right = spec.padding
            even = (top, left) == (bottom, right)

            def convolve(x: Any) -> Any:
                whole = x if even else functional.pad(x, (left, right, top, bottom))
                padding = (top, left) if even else 0
                return functional.conv2d(whole, weights, None, spec.stride, padding, spec.dilation, spec.groups)

            return convolve
        if isinstance(spec, ConvTranspose2d):
            return self._transposed(spec, weights)
        return lambda x: functional.linear(x, weights)

    def _transposed(self, spec: ConvTranspose2d, weights: Any) -> Callable[[Any], Any]:
        from farm.bench.networks.torch_dense import channels_first

        top, left, bottom, right = spec.padding
        more = (top - bottom + spec.output_padding[0], left - right + spec.output_padding[1])
        # torch crops both sides equally; output padding restores the smaller crop at the end.
        if (
            min(more) < 0
            or more[0] >= max(spec.stride[0], spec.dilation[0])
            or more[1] >= max(spec.stride[1], spec.dilation[1])
        ):
            raise NotApplicableError("cuDNN has no transposed convolution with this padding")
        turned = channels_first(spec, weights)
        transposed = self.torch.nn.functional.conv_transpose2d
        return lambda x: transposed(x, turned, None, spec.stride, (top, left), more, spec.groups, spec.dilation)

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Context whose launches a profiler records if it was told not to start at once."""
        profiler = self.torch.cuda.profiler
        self.torch.cuda.synchronize()
        profiler.start()
        yield
        self.torch.cuda.synchronize()
        profiler.stop()

    def release(self) -> None:
        """Returns cached memory to the driver."""
        self.torch.cuda.empty_cache()

    def reason(self, error: Exception) -> str:
        """Reason of a peer's failure."""
        if isinstance(error, self.torch.cuda.OutOfMemoryError):
            return "out of GPU memory"
        return _first_line(error)


def _first_line(error: Exception) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
