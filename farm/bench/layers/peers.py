"""Peers: how each computes a layer on the generated kernel's data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d, LayerSpec, Linear
from farm.bench.layers.gimmik_kernels import ENTRY, GimmikKernel, GimmikKernels, columns_of
from farm.bench.layers.index_kernels import (
    ESCOIN_POSITIONS,
    IndexCubins,
    StretchedRows,
    columns_shape,
    escoin_grid,
    im2col_grid,
    lacks,
)
from farm.bench.layers.torch_gpu import NotApplicableError, TorchGpu
from farm.cuda.device import Device, RawKernel

COLD_BYTES = 200e6
"""Total size of the rotated data sets: four times the largest L2 cache, so that none stays cached."""


@dataclass(frozen=True)
class Variant:
    """A way to run a peer: `launch` runs it on a numbered data set and returns its result."""

    launch: Callable[[int], Any]
    note: str = ""


@dataclass(frozen=True)
class Prepared:
    """A peer with its data on the GPU; the fastest variant counts."""

    variants: Sequence[Variant]
    as_output: Callable[[Any], Any] = lambda result: result
    """Result as [N, K, H', W'] or [rows, K], for the check only; not timed."""
    tf32: bool = False


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer's data on the GPU: an input and an output per data set."""

    spec: LayerSpec
    weights: Weights
    images: int
    """Images, or rows of a Linear."""
    inputs: tuple[int, ...]
    """Device addresses."""
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class PeerKernels:
    """Kernels of peers, if they could be built."""

    index: IndexCubins | None = None
    gimmik: GimmikKernels | None = None


class Peers:
    """Prepares peers for one layer. Runs within torch's context of the stream."""

    def __init__(self, gpu: TorchGpu, device: Device, stream: Any, layer: Layer, kernels: PeerKernels) -> None:
        self._gpu = gpu
        self._torch = gpu.torch
        self._device = device
        self._stream = stream
        self._layer = layer
        self._kernels = kernels
        self._spec = layer.spec
        shape = (layer.images, *layer.spec.input_shape)
        self.inputs = [gpu.view(address, shape, layer.spec.data_type) for address in layer.inputs]

    def prepare(self, name: str) -> Prepared:
        """Prepares a peer by name. Raises NotApplicableError and errors of torch."""
        family, _, rest = name.partition("-")
        tf32 = rest.startswith("tf32")
        match family:
            case "cudnn":
                return self._cudnn(half=rest == "fp16", tf32=tf32)
            case "cublas":
                return self._product(self._gemm, im2col=not rest.endswith("gemm"), tf32=tf32)
            case "cusparse":
                return self._product(self._spmm, im2col=rest != "spmm")
            case "gimmik":
                return self._gimmik()
            case _:
                return self._escoin()

    def _cudnn(self, *, half: bool, tf32: bool) -> Prepared:
        kernel = self._gpu.upload(self._layer.weights.kernel)
        inputs = self.inputs
        if half:
            kernel, *inputs = [self._halved(each) for each in (kernel, *inputs)]
        dense = self._gpu.dense(self._spec, kernel)
        uneven = isinstance(self._spec, Conv2d) and self._spec.padding[:2] != self._spec.padding[2:]
        note = "cuDNN pads evenly only: padding is a launch of its own, charged" if uneven else ""
        return Prepared([Variant(lambda i: dense(inputs[i]), note)], tf32=tf32)

    def _halved(self, tensor: Any) -> Any:
        """A tensor in half precision and channels last, the layout of the tensor cores."""
        half = tensor.half()
        return half.contiguous(memory_format=self._torch.channels_last) if half.dim() == 4 else half

    def _gemm(self, matrix: Any) -> Callable[[Any, Any], Any]:
        return lambda columns, out: self._torch.mm(matrix, columns, out=out)

    def _spmm(self, matrix: Any) -> Callable[[Any, Any], Any]:
        plain = matrix.to_sparse_csr()
        # cuSPARSE is fastest with 32-bit indices.
        sparse = self._torch.sparse_csr_tensor(
            plain.crow_indices().int(), plain.col_indices().int(), plain.values(), size=tuple(matrix.shape)
        )
        return lambda columns, out: self._torch.addmm(out, sparse, columns, beta=0, alpha=1, out=out)

    def _product(
        self, multiply: Callable[[Any], Callable[[Any, Any], Any]], *, im2col: bool, tf32: bool = False
    ) -> Prepared:
        """The layer as weights [K, C R S] times columns, with or without the time of im2col."""
        spec, images = self._spec, self._layer.images
        matrix = self._gpu.upload(self._layer.weights.kernel.reshape(spec.output_channels, -1))
        product = multiply(matrix)
        if isinstance(spec, Linear):
            if not im2col:
                raise NotApplicableError("a linear layer has no im2col: the other row is it")
            outputs = self._outputs((spec.output_channels, images))
            return Prepared([Variant(lambda i: product(self.inputs[i].t(), outputs[i]))], lambda y: y.t(), tf32)
        convolution = self._plain_convolution()
        shape = columns_shape(convolution, images)
        outputs = self._outputs((spec.output_channels, shape[1]))
        kernel = self._raw("im2col")
        grid = im2col_grid(convolution, images)

        def fill(source: int, columns: Any) -> Any:
            kernel(grid, (self._layer.inputs[source], columns.data_ptr()), images, self._stream)
            return columns

        def as_output(y: Any) -> Any:
            return y.view(spec.output_channels, images, *spec.output_shape[1:]).transpose(0, 1)

        if im2col:
            scratch = self._torch.empty(shape, device="cuda")
            return Prepared([Variant(lambda i: product(fill(i, scratch), outputs[i]))], as_output, tf32)
        count = min(len(self.inputs), max(1, math.ceil(COLD_BYTES / (4 * math.prod(shape)))))
        ready = [fill(i, self._torch.empty(shape, device="cuda")) for i in range(count)]
        return Prepared([Variant(lambda i: product(ready[i % count], outputs[i]))], as_output, tf32)

    def _escoin(self) -> Prepared:
        spec, images = self._plain_convolution(), self._layer.images
        top, left, bottom, right = spec.padding
        pad = self._torch.nn.functional.pad
        inputs = [pad(x, (left, right, top, bottom)).contiguous() for x in self.inputs]
        matrix = StretchedRows.of(spec, self._layer.weights)
        rows, entries = self._gpu.upload(matrix.rows), self._gpu.upload(matrix.entries)
        outputs = self._outputs((images, *spec.output_shape))

        def variant(positions: int) -> Variant:
            kernel = self._raw("escoin", f"escoin_{positions}")
            grid = escoin_grid(spec, images, positions)

            def launch(i: int) -> Any:
                pointers = (inputs[i].data_ptr(), rows.data_ptr(), entries.data_ptr(), outputs[i].data_ptr())
                kernel(grid, pointers, images, self._stream)
                return outputs[i]

            return Variant(launch, f"{positions} positions a thread; its input padded beforehand, not charged")

        return Prepared([variant(positions) for positions in ESCOIN_POSITIONS])

    def _gimmik(self) -> Prepared:
        spec, images = self._spec, self._layer.images
        made = self._kernels.gimmik
        if made is None or made.reason:
            raise NotApplicableError(made.reason if made else "its kernels were not compiled")
        n = columns_of(spec, images)
        outputs = self._outputs((spec.output_channels, n))
        count = min(len(self.inputs), max(1, math.ceil(COLD_BYTES / (4 * n * spec.input_shape[0]))))
        columns = [self._columns(x) for x in self.inputs[:count]]

        def variant(made: GimmikKernel) -> Variant:
            kernel = self._device.raw_kernel(made.cubin, ENTRY, made.block)

            def launch(i: int) -> Any:
                kernel(made.grid, (columns[i % count].data_ptr(), outputs[i].data_ptr()), None, self._stream)
                return outputs[i]

            return Variant(launch, f"{made.variant}; its columns made beforehand, not charged")

        def as_output(y: Any) -> Any:
            return y.view(spec.output_channels, images, *spec.output_shape[1:]).transpose(0, 1)

        return Prepared([variant(each) for each in made.kernels], as_output)

    def _columns(self, x: Any) -> Any:
        """Input of a linear layer or a 1x1 convolution as columns [C, N H' W']."""
        if isinstance(self._spec, Conv2d):
            down, right = self._spec.stride
            x = x[:, :, ::down, ::right]
        return x.transpose(0, 1).reshape(x.shape[1], -1).contiguous()

    def _plain_convolution(self) -> Conv2d:
        if not isinstance(self._spec, Conv2d):
            raise NotApplicableError("made for ordinary convolutions only")
        if reason := lacks(self._spec):
            raise NotApplicableError(reason)
        return self._spec

    def _raw(self, name: str, entry: str | None = None) -> RawKernel:
        if self._kernels.index is None:
            raise NotApplicableError("its kernel was not compiled")
        return self._device.raw_kernel(getattr(self._kernels.index, name), entry or name, (256, 1, 1))

    def _outputs(self, shape: tuple[int, ...]) -> list[Any]:
        """The outputs' memory in another shape, zeroed, as SpMM may read it."""
        views = [self._gpu.view(address, shape, "float32") for address in self._layer.outputs]
        for view in views:
            view.zero_()
        return views
