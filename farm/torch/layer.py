"""A compiled layer on a GPU as an operator of PyTorch: it launches on the current stream."""

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
from farm.cuda.driver import driver
from farm.cuda.module import LoadedPart
from farm.errors import UsageError
from farm.torch.code_prefetch import CodeAhead
from farm.torch.contexts import launching_on

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALIGNMENT_BYTES = 16
"""Of the pointers that a kernel takes."""
BRANCHES = 8
"""Parts of a layer run beside each other on so many streams."""


class Compute(Protocol):
    """Computes a layer from its input, residual and gate, contiguous and of the layer's type; the images of an input
    that is read among others may lie apart."""

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        output: torch.Tensor | None = None,
        gate: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor:
        """Gives the output: the one to be filled, whose images may lie apart, or a new one."""


def layers_on(device: torch.device, bundle: Bundle) -> dict[str, GpuLayer]:
    """All layers of a bundle, loaded. Raises DeviceError without a GPU, UsageError for one that it has no code for."""
    if device.type != "cuda":
        raise DeviceError(f"compiled layers run on NVIDIA GPUs only, not on the device {device}: give a CUDA device")
    if not torch.cuda.is_available():
        raise DeviceError(f"compiled layers run on NVIDIA GPUs only, and PyTorch finds none here: {no_gpu_way_out()}")
    layers = {name: GpuLayer(bundle, layer) for name, layer in bundle.layers.items()}
    for layer in layers.values():
        layer.load(device)
    return layers


def fetch_ahead(layers: Sequence[GpuLayer], device: torch.device) -> None:
    """Of a network that is captured, layers fetch each other's code from now on; they come in the order they run in."""
    with torch.cuda.device(device):
        parts, image_bytes = [layer.load(device) for layer in layers], [layer.image_bytes for layer in layers]
        ahead = CodeAhead(parts, image_bytes, device)
        for number, layer in enumerate(layers):
            layer.tell(ahead, number, device)


def no_gpu_way_out() -> str:
    """What to do where PyTorch finds no GPU."""
    built = "; this PyTorch is built without CUDA" if torch.version.cuda is None else ""
    return f"run this on a machine with one, and look at nvidia-smi there{built}"


@dataclass(frozen=True)
class _Sizes:
    """What follows from the shape of a layer's input."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    images: int
    """Or rows."""
    step: int
    """Elements of the output for each of them."""

    @staticmethod
    def of(spec: LayerSpec, shape: Sequence[int]) -> _Sizes:
        images = math.prod(shape[:-1]) if isinstance(spec, Linear) else shape[0]
        return _Sizes(tuple(shape), tuple(output_shape(spec, shape)), images, math.prod(spec.output_shape))


class GpuLayer:
    """All parts of a layer; loaded on each GPU when it is first used there. Safe to call from several threads."""

    def __init__(self, bundle: Bundle, layer: BundledLayer) -> None:
        self._bundle = bundle
        self._layer = layer
        least = min(each.launch.images_limit for each in layer.cubins)
        self._most_images = least // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        """Of one launch: more are launched in slices, which begin at aligned addresses."""
        self._follow: dict[int, tuple[CodeAhead, int]] = {}
        """By device: where this layer's launches are told, and by which number."""
        self._sizes = _Sizes.of(layer.spec, (0, *layer.spec.input_shape))
        """Of the last call: the next one's are the same, as a rule."""
        self._lock = threading.Lock()
        self._loaded: dict[int, tuple[Sequence[LoadedPart], Sequence[torch.cuda.Stream]]] = {}

    def load(self, device: torch.device) -> Sequence[LoadedPart]:
        """Its parts there. Raises DeviceError, and UsageError where the bundle has nothing for this GPU."""
        return self._on(_index(device))[0]

    @property
    def image_bytes(self) -> int:
        """Of one image of its input and its output."""
        spec = self._layer.spec
        element_bytes: int = DTYPES[spec.data_type].itemsize
        return (math.prod(spec.input_shape) + math.prod(spec.output_shape)) * element_bytes

    def tell(self, ahead: CodeAhead, number: int, device: torch.device) -> None:
        """Of each launch there from now on, by the layer's number in its network."""
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
        parts, others = self._on(index)
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
            if images <= self._most_images:
                _enqueue(parts, others, values, current)
            else:
                for slice_values in self._slices(values, tensors):
                    _enqueue(parts, others, slice_values, current)
        return output

    def _slices(self, values: Mapping[str, int], tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, int]]:
        """What is launched one after another where one launch does not take all images."""
        images, most = values["images"], self._most_images
        image_bytes = {name: each.numel() // images * each.element_size() for name, each in tensors.items()}
        image_bytes["output"] = values["output_step"] * tensors["output"].element_size()
        if self._layer.most_input_step:
            image_bytes["input"] = values["input_step"] * tensors["input"].element_size()
        for start in range(0, images, most):
            moved = {name: values[name] + start * step_bytes for name, step_bytes in image_bytes.items()}
            yield {**values, **moved, "images": min(most, images - start)}

    def _on(self, index: int) -> tuple[Sequence[LoadedPart], Sequence[torch.cuda.Stream]]:
        found = self._loaded.get(index)  # without the lock: it is taken once, not for each call
        if found is None:
            with self._lock:
                found = self._loaded.get(index) or self._loaded.setdefault(index, self._load(index))
        return found

    def _load(self, index: int) -> tuple[Sequence[LoadedPart], Sequence[torch.cuda.Stream]]:
        major, minor = torch.cuda.get_device_capability(index)
        cubins = self._layer.cubins_for(f"sm_{major}{minor}")
        if not cubins:
            raise UsageError(
                f"{self._bundle.path} has {', '.join(self._bundle.archs)} and none of it runs on "
                f"{torch.cuda.get_device_name(index)} (sm_{major}{minor}): "
                f"compile the model with --arch sm_{major}{minor} and fetch it again; of an older GPU's job, "
                "farm fetch --ptx writes what runs on later ones too"
            )
        driver()
        with torch.cuda.device(index):
            torch.cuda.current_stream().synchronize()  # so that torch has made its context, which modules load into
            parts = [LoadedPart(self._bundle.cubin(each), each.launch) for each in cubins]
            others = [torch.cuda.Stream(index) for _ in range(min(len(parts), BRANCHES) - 1)]
        return parts, others


def _index(device: torch.device) -> int:
    index: int = torch.cuda.current_device() if device.index is None else device.index
    return index


def _enqueue(
    parts: Sequence[LoadedPart],
    others: Sequence[torch.cuda.Stream],
    values: Mapping[str, int],
    current: torch.cuda.Stream,
) -> None:
    """To the current stream it is one launch: parts begin after what the stream has, what follows waits for all."""
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
    """Of a layer's output for an input of that shape."""
    if isinstance(spec, Linear):
        return [*shape[:-1], spec.outputs]
    rank = len(shape)
    return [shape[0], *spec.output_shape] if rank == 4 else [shape[0], spec.output_shape[0], spec.output_shape[2]]


_LIBRARY = torch.library.Library("farm", "DEF")
_LIBRARY.define("layer(Tensor x, Tensor? residual, int number, Tensor? gate=None) -> Tensor")
_LIBRARY.define("write_layer(Tensor x, Tensor? residual, int number, Tensor(a!) output, Tensor? gate=None) -> ()")
_layers: dict[int, tuple[BundledLayer, Compute]] = {}
"""By the number that the operator is called with: an operator takes tensors and numbers only."""
_numbers = itertools.count()


def register(layer: BundledLayer, compute: Compute) -> int:
    """Makes a layer known; gives the number that `torch.ops.farm.layer` is called with."""
    number = next(_numbers)
    _layers[number] = layer, compute
    return number


def forget(number: int) -> None:
    """Lets go of a layer that no module calls any more."""
    _layers.pop(number, None)


def _compute(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    number: int,
    output: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> torch.Tensor:
    layer, compute = _layers[number]
    x = x if _is_among_others(layer, x) else _checked(layer, "input", x)
    if residual is not None:
        residual = _checked(layer, "residual", residual)
        # It may be of the shape that the model gives the output behind the layer.
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
    x: torch.Tensor,
    residual: torch.Tensor | None,
    number: int,
    output: torch.Tensor,
    gate: torch.Tensor | None = None,
) -> None:
    _compute(x, residual, number, output, gate)


def _fake_write(
    _x: torch.Tensor,
    _residual: torch.Tensor | None,
    _number: int,
    _output: torch.Tensor,
    _gate: torch.Tensor | None = None,
) -> None:
    """Nothing has to be known of what it gives."""


def _fake(
    x: torch.Tensor, _residual: torch.Tensor | None, number: int, _gate: torch.Tensor | None = None
) -> torch.Tensor:
    return x.new_empty(output_shape(_layers[number][0].spec, x.shape))


def _is_among_others(layer: BundledLayer, x: torch.Tensor) -> bool:
    """Whether an input is channels of a larger tensor, from where the layer's kernels read it as it is."""
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
    """Contiguous and aligned, copied where it is not. Raises TypeError and ValueError, in words."""
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
    image = tuple(shape)[1:]  # much quicker than slices of a torch.Size
    channels, height, width = spec.input_shape
    return image == (channels, height, width) or (height == 1 and image == (channels, width))


_LIBRARY.impl("layer", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("write_layer", _write, "CompositeExplicitAutograd")
torch.library.register_fake("farm::layer", _fake)
torch.library.register_fake("farm::write_layer", _fake_write)
