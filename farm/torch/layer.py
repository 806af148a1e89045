"""A compiled layer as a PyTorch operator, which launches on the current stream."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from codegen.errors import DeviceError
from codegen.ir.layer_spec import LayerSpec, Linear
from farm.bundle.reader import Bundle, BundledLayer
from farm.bundle.row_groups import group_for, row_groups
from farm.cuda.driver import driver
from farm.cuda.module import LoadedPart
from farm.errors import UsageError
from farm.torch.code_prefetch import NetworkPrefetch
from farm.torch.contexts import launching_on

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALIGNMENT_BYTES = 16
"""Alignment of the pointers that a kernel takes."""
BRANCHES = 8
"""Most streams on which the parts of a layer run in parallel."""


class Compute(Protocol):
    """Computes a layer from input, residual and gate of the layer's data type.

    All are contiguous, except that the images of an input which lies within a larger tensor may lie apart.
    """

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        output: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor:
        """Return the output: `output`, whose images may lie apart, or a new tensor."""


def layers_on(device: torch.device, bundle: Bundle) -> dict[str, GpuLayer]:
    """Load all layers of a bundle. Raises DeviceError without a GPU, and UsageError if there is no code for it."""
    if device.type != "cuda":
        raise DeviceError(f"compiled layers run on NVIDIA GPUs only, not on the device {device}: use a CUDA device")
    if not torch.cuda.is_available():
        raise DeviceError(f"compiled layers run on NVIDIA GPUs only, and PyTorch finds none: {no_gpu_way_out()}")
    layers = {name: GpuLayer(bundle, layer) for name, layer in bundle.layers.items()}
    for layer in layers.values():
        layer.load(device)
    return layers


def prefetch_code(layers: Sequence[GpuLayer], device: torch.device) -> None:
    """Make layers, given in order of execution, prefetch each other's code when their network is captured."""
    with torch.cuda.device(device):
        groups, image_bytes = [layer.load(device) for layer in layers], [layer.image_bytes for layer in layers]
        ahead = NetworkPrefetch(groups, image_bytes, device)
        for number, layer in enumerate(layers):
            layer.tell(ahead, number, device)


def no_gpu_way_out() -> str:
    """Way out if PyTorch finds no GPU."""
    built = "; this PyTorch is built without CUDA" if torch.version.cuda is None else ""
    return f"use a machine with a GPU and check nvidia-smi{built}"


@dataclass(frozen=True)
class _Sizes:
    """Sizes that follow from the shape of a layer's input."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    images: int
    """Number of images, or of rows of a Linear."""
    step: int
    """Elements of the output per image or row."""

    @staticmethod
    def of(spec: LayerSpec, shape: Sequence[int]) -> _Sizes:
        images = math.prod(shape[:-1]) if isinstance(spec, Linear) else shape[0]
        return _Sizes(tuple(shape), tuple(output_shape(spec, shape)), images, math.prod(spec.output_shape))


class GpuLayer:
    """All parts of a layer, loaded on each GPU at first use. Thread-safe."""

    def __init__(self, bundle: Bundle, layer: BundledLayer) -> None:
        self._bundle = bundle
        self._layer = layer
        least = min(each.launch.images_limit for each in layer.cubins)
        self._most_images = least // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        """Most images of one launch; more are launched in slices at aligned addresses."""
        self._follow: dict[int, tuple[NetworkPrefetch, int]] = {}
        """The prefetch of the network and the layer's index in it, by device."""
        self._sizes = _Sizes.of(layer.spec, (0, *layer.spec.input_shape))
        """Sizes of the last call, which usually equal those of the next."""
        self._lock = threading.Lock()
        self._loaded: dict[int, tuple[Sequence[Sequence[LoadedPart]], Sequence[torch.cuda.Stream]]] = {}

    def load(self, device: torch.device) -> Sequence[Sequence[LoadedPart]]:
        """The groups of kernels, loaded on a device.

        Raises DeviceError, and UsageError if the bundle has no code for the GPU.
        """
        return self._on(_index(device))[0]

    @property
    def image_bytes(self) -> int:
        """Bytes of the input and output of one image."""
        spec = self._layer.spec
        element_bytes: int = DTYPES[spec.data_type].itemsize
        return (math.prod(spec.input_shape) + math.prod(spec.output_shape)) * element_bytes

    def tell(self, ahead: NetworkPrefetch, number: int, device: torch.device) -> None:
        """Connect the layer to its network's prefetch on a device; `number` is its index in the network."""
        self._follow[_index(device)] = ahead, number

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        output: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor:
        sizes = self._sizes
        if sizes.input != x.shape:
            sizes = self._sizes = _Sizes.of(self._layer.spec, x.shape)
        if output is None:
            output, step = x.new_empty(sizes.output), sizes.step
        else:
            step = output.stride(0)
        images = sizes.images
        if images == 0:
            return output
        index = _index(x.device)
        groups, others = self._on(index)
        tensors = {"input": x, "output": output}
        if residual is not None:
            tensors["residual"] = residual
        if gate is not None:
            tensors["gate"] = gate
        values = {"images": images, "output_step": step, "input_step": x.stride(0)}
        for name, each in tensors.items():
            values[name] = each.data_ptr()
        with launching_on(index):
            if index in self._follow:
                ahead, number = self._follow[index]
                ahead.before(number, min(self._most_images, images))
            current = torch.cuda.current_stream(index)
            parts = group_for(groups, min(self._most_images, images))
            if images <= self._most_images:
                _enqueue(parts, others, values, current)
            else:
                for slice_values in self._slices(values, tensors):
                    _enqueue(parts, others, slice_values, current)
        return output

    def _slices(self, values: Mapping[str, int], tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, int]]:
        """Arguments of consecutive launches if one launch cannot take all images."""
        images, most = values["images"], self._most_images
        image_bytes = {name: each.numel() // images * each.element_size() for name, each in tensors.items()}
        image_bytes["output"] = values["output_step"] * tensors["output"].element_size()
        if self._layer.most_input_step:
            image_bytes["input"] = values["input_step"] * tensors["input"].element_size()
        for start in range(0, images, most):
            moved = {name: values[name] + start * step_bytes for name, step_bytes in image_bytes.items()}
            yield {**values, **moved, "images": min(most, images - start)}

    def _on(self, index: int) -> tuple[Sequence[Sequence[LoadedPart]], Sequence[torch.cuda.Stream]]:
        found = self._loaded.get(index)  # without the lock, which only the first call takes
        if found is None:
            with self._lock:
                found = self._loaded.get(index) or self._loaded.setdefault(index, self._load(index))
        return found

    def _load(self, index: int) -> tuple[Sequence[Sequence[LoadedPart]], Sequence[torch.cuda.Stream]]:
        major, minor = torch.cuda.get_device_capability(index)
        cubins = self._layer.cubins_for(f"sm_{major}{minor}")
        if not cubins:
            raise UsageError(
                f"{self._bundle.path} has code for {', '.join(self._bundle.archs)} only, not for "
                f"{torch.cuda.get_device_name(index)} (sm_{major}{minor}): "
                f"compile the model with --arch sm_{major}{minor}, or fetch the job of an older GPU with --ptx"
            )
        driver()
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # makes PyTorch create its context, into which modules load
            groups = row_groups(LoadedPart(self._bundle.cubin(each), each.launch, each.most_rows) for each in cubins)
            others = [torch.cuda.Stream(index) for _ in range(min(max(map(len, groups)), BRANCHES) - 1)]
        return groups, others


def _index(device: torch.device) -> int:
    index: int = torch.cuda.current_device() if device.index is None else device.index
    return index


def _enqueue(
    parts: Sequence[LoadedPart],
    others: Sequence[torch.cuda.Stream],
    values: Mapping[str, int],
    current: torch.cuda.Stream,
) -> None:
    """Enqueue parts on several streams such that they act as one launch on the current stream."""
    others = others[: len(parts) - 1]
    if not others:
        parts[0].enqueue(values, current.cuda_stream)
        return
    begin = current.record_event()
    for other in others:
        other.wait_event(begin)
    streams = (current, *others)
    for i, part in enumerate(parts):
        part.enqueue(values, streams[i % len(streams)].cuda_stream)
    for other in others:
        current.wait_event(other.record_event())


def output_shape(spec: LayerSpec, shape: Sequence[int]) -> list[int]:
    """Shape of a layer's output for an input shape."""
    if isinstance(spec, Linear):
        return [*shape[:-1], spec.outputs]
    channels, height, width = spec.output_shape
    by_rank = {3: [width], 4: [height, width], 5: [1, height, width]}
    return [shape[0], channels, *by_rank[len(shape)]]


_LIBRARY = torch.library.Library("farm", "DEF")
_LIBRARY.define("layer(Tensor x, Tensor? residual, int number, Tensor? gate=None) -> Tensor")
_LIBRARY.define("write_layer(Tensor x, Tensor? residual, int number, Tensor(a!) output, Tensor? gate=None) -> ()")
_LIBRARY.define("place(Tensor x, Tensor(a!) output) -> ()")
_layers: dict[int, tuple[BundledLayer, Compute]] = {}
"""Layers by number, because an operator takes tensors and numbers only."""
_numbers = itertools.count()


def register(layer: BundledLayer, compute: Compute) -> int:
    """Register a layer; returns the number to pass to `torch.ops.farm.layer`."""
    number = next(_numbers)
    _layers[number] = layer, compute
    return number


def forget(number: int) -> None:
    """Unregister a layer."""
    _layers.pop(number, None)


def _compute(
    x: torch.Tensor, residual: torch.Tensor | None, number: int, output: torch.Tensor | None, gate: torch.Tensor | None
) -> torch.Tensor:
    layer, compute = _layers[number]
    x = x if _is_among_others(layer, x) else _checked(layer, "input", x)
    if residual is not None:
        residual = _checked(layer, "residual", residual)
        # Its shape may be the one that the model gives the layer's output later.
        if residual.numel() * math.prod(layer.spec.input_shape) != x.numel() * math.prod(layer.spec.output_shape):
            raise ValueError(
                f"layer {layer.name}: its residual is {list(residual.shape)}, its output is "
                f"{output_shape(layer.spec, x.shape)}"
            )
    if gate is not None:
        gate = _checked(layer, "gate", gate)
        if gate.numel() != x.shape[0] * x.shape[1]:
            raise ValueError(f"layer {layer.name}: its gate is {list(gate.shape)}, its input {list(x.shape)}")
    return compute(x, residual, output, gate)


def _run(x: torch.Tensor, residual: torch.Tensor | None, number: int, gate: torch.Tensor | None = None) -> torch.Tensor:
    return _compute(x, residual, number, None, gate)


def _write(
    x: torch.Tensor, residual: torch.Tensor | None, number: int, output: torch.Tensor, gate: torch.Tensor | None = None
) -> None:
    _compute(x, residual, number, output, gate)


def _place(x: torch.Tensor, output: torch.Tensor) -> None:
    """Copies a tensor into a range of a larger one; torch.compile would copy all of that for aten's copy_."""
    output.copy_(x)


def _fake_place(_x: torch.Tensor, _output: torch.Tensor) -> None:
    """Fake kernel for tracing: there is no result."""


def _fake_write(
    _x: torch.Tensor,
    _residual: torch.Tensor | None,
    _number: int,
    _output: torch.Tensor,
    _gate: torch.Tensor | None = None,
) -> None:
    """Fake kernel for tracing: there is no result."""


def _fake(
    x: torch.Tensor, _residual: torch.Tensor | None, number: int, _gate: torch.Tensor | None = None
) -> torch.Tensor:
    return x.new_empty(output_shape(_layers[number][0].spec, x.shape))


def _is_among_others(layer: BundledLayer, x: torch.Tensor) -> bool:
    """Whether an input is a range of channels of a larger tensor that the layer's kernels can read in place."""
    return (
        layer.most_input_step > 0
        and x.dtype == DTYPES[layer.spec.data_type]
        and _fits(layer.spec, x.shape)
        and x.shape[0] > 1
        and x[0].is_contiguous()
        and x.stride(0) <= layer.most_input_step
        and (x.stride(0) * x.element_size()) % ALIGNMENT_BYTES == 0
        and x.data_ptr() % ALIGNMENT_BYTES == 0
    )


def _checked(layer: BundledLayer, what: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, copied unless contiguous and aligned. Raises TypeError and ValueError for a wrong type or shape."""
    spec, wanted = layer.spec, DTYPES[layer.spec.data_type]
    if tensor.dtype != wanted:
        raise TypeError(f"layer {layer.name} takes {spec.data_type} and its {what} is {tensor.dtype}: convert it")
    if what == "input" and not _fits(spec, tensor.shape):
        sizes = ("...", spec.inputs) if isinstance(spec, Linear) else ("N", *spec.input_shape)
        shown = f"[{', '.join(map(str, sizes))}]"
        raise ValueError(f"layer {layer.name} was compiled for inputs of {shown} and is given {list(tensor.shape)}")
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT_BYTES == 0 else tensor.clone()


def _fits(spec: LayerSpec, shape: Sequence[int]) -> bool:
    if isinstance(spec, Linear):
        return shape[-1] == spec.inputs
    image = tuple(shape)[1:]  # much faster than slicing a torch.Size
    channels, height, width = spec.input_shape
    return image == (channels, height, width) or (height == 1 and image == (channels, width))


_LIBRARY.impl("layer", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("write_layer", _write, "CompositeExplicitAutograd")
_LIBRARY.impl("place", _place, "CompositeExplicitAutograd")
torch.library.register_fake("farm::layer", _fake)
torch.library.register_fake("farm::place", _fake_place)
torch.library.register_fake("farm::write_layer", _fake_write)
