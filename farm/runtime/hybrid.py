"""Hybrid runs of a network: compiled layers as kernels, the operators between them by onnxruntime on the CPU.

This runs every network that onnxruntime runs, with a copy between host and GPU before and after each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from codegen.frontend.onnx.export.residual_graph import Tensor
from codegen.frontend.onnx.export.segments import LayerCall, Segment, SegmentedNetwork
from codegen.ir.launch import tensors_of
from codegen.ir.layer_spec import LayerSpec
from farm.bundle.reader import Bundle
from farm.errors import UsageError
from farm.runtime.emulated import layer_ptx, run_emulated
from farm.runtime.network import Network, See
from farm.runtime.onnxruntime_session import OnnxRuntimeError, Session
from farm.runtime.plan import ELEMENT_BYTES, LayerStep, Place, Plan, Port, layer_shape

Array = NDArray[Any]
Compute = Callable[[LayerCall, Sequence[Array]], Array]
"""Computes a layer from its input, residual and gate, images or rows first; gives its output so."""


class Segments:
    """A network of which onnxruntime runs the segments."""

    def __init__(self, network: SegmentedNetwork, specs: Mapping[str, LayerSpec]) -> None:
        self.inputs, self.outputs = network.inputs, network.outputs
        self._steps = network.steps
        self._specs = specs
        self._sessions: dict[tuple[int, tuple[str, ...]], Session] = {}

    def run(self, inputs: Sequence[Array], compute: Compute) -> list[Array]:
        """The outputs. Raises UsageError for inputs that the network does not take, or that onnxruntime refuses."""
        check_inputs(self.inputs, inputs)
        values = {port.name: array for port, array in zip(self.inputs, inputs, strict=True)}
        for number, step in enumerate(self._steps):
            if isinstance(step, LayerCall):
                values[step.output] = self._layer(step, [values[name] for name in step.inputs], compute)
            else:
                values |= zip(step.outputs, self._segment(number, step, values), strict=True)
        return [values[port.name] for port in self.outputs]

    def _segment(self, number: int, segment: Segment, values: Mapping[str, Array]) -> list[Array]:
        given = {name: values[name] for name in segment.inputs}
        types = {name: array.dtype for name, array in given.items()}
        key = number, tuple(map(str, types.values()))
        try:
            if key not in self._sessions:
                self._sessions[key] = Session(segment.model(types))
            return self._sessions[key].run(segment.outputs, given)
        except OnnxRuntimeError as error:
            raise UsageError(f"onnxruntime cannot run the operators between compiled layers: {error}") from None

    def _layer(self, call: LayerCall, arrays: Sequence[Array], compute: Compute) -> Array:
        spec = self._specs[call.layer]
        shape = layer_shape(spec, arrays[0].shape)
        if shape is None or any(array.dtype.name != spec.data_type for array in arrays):
            given = f"{arrays[0].dtype} {list(arrays[0].shape)}"
            raise UsageError(
                f"{call.layer} was compiled for {spec.data_type} {list(spec.input_shape)} but is given {given}: "
                "compile the model with --input-shape"
            )
        shapes = (port.shape for port in layer_plan(call.layer, spec).inputs)
        rows = [array.reshape(-1, *each) for array, each in zip(arrays, shapes, strict=True)]
        return compute(call, [np.ascontiguousarray(each) for each in rows]).reshape(shape)


class HybridNetwork:
    """A bundle's network on a GPU, or in the emulator, with onnxruntime between its layers."""

    def __init__(self, bundle: Bundle, device: int = 0, *, emulate: bool = False) -> None:
        """Raises UsageError for a bundle without code for the GPU or, with `emulate`, without PTX."""
        self._held = ExitStack()
        self._segments = Segments(bundle.segments, {name: layer.spec for name, layer in bundle.layers.items()})
        self.inputs, self.outputs = self._segments.inputs, self._segments.outputs
        self.device_name = "the emulator"
        self._layers: dict[str, Callable[[Sequence[Array]], list[Array]]] = {}
        try:
            for name, layer in bundle.layers.items():
                plan = layer_plan(name, layer.spec)
                if emulate:
                    self._layers[name] = _emulated(bundle, plan)
                else:
                    network = self._held.enter_context(Network(bundle, device, plan))
                    self._layers[name], self.device_name = network.run, network.device_name
        except BaseException:
            self.close()
            raise

    def run(self, arrays: Sequence[Array], see: See | None = None) -> list[Array]:
        """The outputs for inputs in the model's order. `see` is called with every layer's tensor and its name.

        Raises UsageError for arrays that the model does not take.
        """

        def compute(call: LayerCall, given: Sequence[Array]) -> Array:
            [made] = self._layers[call.layer](given)
            if see is not None:
                see(call.output, made)
            return made

        return self._segments.run(arrays, compute)

    def close(self) -> None:
        """Frees all resources on the GPU."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _emulated(bundle: Bundle, plan: Plan) -> Callable[[Sequence[Array]], list[Array]]:
    kernels = layer_ptx(bundle, plan)
    return lambda arrays: run_emulated(plan, kernels, b"", arrays)


def layer_plan(name: str, spec: LayerSpec) -> Plan:
    """The plan of one layer as a network: its input, residual and gate are the network's inputs."""
    shapes = {"input": spec.input_shape, "residual": spec.output_shape, "gate": spec.input_shape[:1]}
    given = [each for each in tensors_of(spec) if each != "output"]
    places = [Place("input", i) for i in range(len(given))]
    step = LayerStep(name, 1, places[0], Place("output", 0), tuple(places[1:]), "")
    inputs = tuple(_port(each, shapes[each], spec) for each in given)
    return Plan(None, inputs, (_port("output", spec.output_shape, spec),), 0, (), (step,))


def _port(name: str, shape: Sequence[int], spec: LayerSpec) -> Port:
    return Port(name, spec.data_type, 1, tuple(shape), prod(shape) * ELEMENT_BYTES[spec.data_type])


def check_inputs(tensors: Sequence[Tensor], arrays: Sequence[Array]) -> None:
    """Raises UsageError for arrays that a network with these inputs does not take."""
    if len(arrays) != len(tensors):
        names = ", ".join(f"'{each.name}'" for each in tensors)
        raise UsageError(f"{len(arrays)} arrays for the network's inputs {names}: give an array for each")
    for tensor, array in zip(tensors, arrays, strict=True):
        if array.dtype.name != tensor.dtype:
            raise UsageError(f"the input '{tensor.name}' has type {array.dtype}, expected {tensor.dtype}: convert it")
        fits = len(array.shape) == len(tensor.shape) and all(
            not isinstance(size, int) or size == given for size, given in zip(tensor.shape, array.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("?" if each is None else str(each) for each in tensor.shape)
            raise UsageError(
                f"the input '{tensor.name}' has shape {list(array.shape)}, expected [{wanted}]: reshape it"
            )
