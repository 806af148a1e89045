"""Layers of every operator for property tests, and their outputs by definition, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from codegen.ir.checkpoint import Weights
from codegen.ir.dtypes import from_float32, to_float32
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    Conv2d,
    ConvTranspose2d,
    DataType,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    LeakyRelu,
    Linear,
    Mish,
    Scale,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)
from codegen.kernels.output_region import Region
from codegen.model_zoo import prune
from codegen.verification.activations import function_of

Term = tuple[int, np.float32, Any]
"""Channel within the kernel's group, weight, input element."""

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
paddings = st.tuples(*[st.integers(0, 3)] * 4)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Clip, st.sampled_from([None, 0.0, -0.3]), st.sampled_from([None, 6.0, 0.7])),
    st.builds(LeakyRelu, st.sampled_from([0.0, 0.01, 0.25, 1.0, 3.0, -0.5])),
    st.just(AddResidual()),
    st.just(Scale(-1.5, 0.25)),
    st.sampled_from([Sigmoid(), HardSigmoid(0.2, 0.5), HardSwish(1 / 6, 0.5), Swish(), Gelu(), Tanh(), Mish()]),
)
epilogues = st.lists(steps, max_size=3).map(tuple)


@st.composite
def conv2d_specs(draw: st.DrawFn) -> Conv2d:
    kernel, stride, dilation, padding = draw(pairs), draw(pairs), draw(pairs), draw(paddings)
    groups = draw(st.integers(1, 3))
    least = [max(1, (kernel[i] - 1) * dilation[i] + 1 - padding[i] - padding[i + 2]) for i in (0, 1)]
    height, width = (draw(st.integers(size, size + 5)) for size in least)
    channels, kernels = (groups * draw(st.integers(1, 3)) for _ in range(2))
    return Conv2d(channels, height, width, kernels, *kernel, stride, padding, dilation, groups)


@st.composite
def conv_transpose2d_specs(draw: st.DrawFn) -> ConvTranspose2d:
    kernel, stride, dilation, padding = draw(pairs), draw(pairs), draw(pairs), draw(paddings)
    groups = draw(st.integers(1, 3))
    height, width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    channels, kernels = (groups * draw(st.integers(1, 3)) for _ in range(2))
    more = draw(st.integers(0, stride[0] - 1)), draw(st.integers(0, stride[1] - 1))
    spec = ConvTranspose2d(channels, height, width, kernels, *kernel, stride, padding, dilation, groups, more)
    assume(spec.output_height >= 1 and spec.output_width >= 1)
    return spec


linear_specs = st.builds(Linear, st.integers(1, 9), st.integers(1, 6))
plain_specs = st.one_of(conv2d_specs(), conv_transpose2d_specs(), linear_specs)


@st.composite
def specs(draw: st.DrawFn) -> LayerSpec:
    """Layer specs of every operator, with an epilogue."""
    return replace(draw(plain_specs), epilogue=draw(epilogues))


@st.composite
def regions(draw: st.DrawFn, spec: LayerSpec, images: int) -> Region:
    sizes = (images, *spec.output_shape)
    return Region(*(draw(st.slices(size).filter(lambda part: part.step in (None, 1))) for size in sizes))


def random_weights(spec: LayerSpec, rng: np.random.Generator, sparsity: float = 0.5) -> Weights:
    """Normal weights in the spec's data type."""
    kernel = prune(rng.standard_normal(spec.weights_shape, np.float32), sparsity)
    bias = rng.standard_normal(spec.output_channels, np.float32)
    return Weights(nearest(kernel, spec.data_type), nearest(bias, spec.data_type))


def random_arrays(
    spec: LayerSpec, rng: np.random.Generator, images: int = 2, scale: float = 1
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """A random input, and a residual if the layer adds one, held as the kernel reads them."""
    x = from_float32(rng.standard_normal((images, *spec.input_shape), np.float32) * np.float32(scale), spec.data_type)
    if AddResidual() not in spec.epilogue:
        return x, None
    residual = rng.standard_normal((images, *spec.output_shape), np.float32) * np.float32(scale)
    return x, from_float32(residual, spec.data_type)


def nearest(values: NDArray[np.float32], data_type: DataType) -> NDArray[np.float32]:
    return to_float32(from_float32(values, data_type), data_type)


def terms(spec: LayerSpec, weights: Weights, x: NDArray[Any], place: tuple[int, ...]) -> Iterator[Term]:
    """Non-zero weights of the output at `place` with their input elements; weights on padding are left out."""
    n, k, *position = place
    channels = weights.kernel.shape[1]
    first = 0 if isinstance(spec, Linear) else k // (spec.output_channels // spec.groups) * channels
    for c, *tap in np.argwhere(weights.kernel[k]):
        where = _input_position(spec, position, tap)
        if where is not None:
            yield c, weights.kernel[(k, c, *tap)], x[(n, first + c, *where)]


def _input_position(spec: LayerSpec, output: list[int], tap: list[int]) -> tuple[int, ...] | None:
    where: list[int] = []
    for axis, (place, r) in enumerate(zip(output, tap, strict=True)):
        assert not isinstance(spec, Linear)
        if isinstance(spec, Conv2d):
            element, rest = place * spec.stride[axis] + r * spec.dilation[axis] - spec.padding[axis], 0
        else:
            element, rest = divmod(place - r * spec.dilation[axis] + spec.padding[axis], spec.stride[axis])
        if rest or not 0 <= element < spec.input_shape[1 + axis]:
            return None
        where.append(element)
    return tuple(where)


def by_definition(
    spec: LayerSpec, weights: Weights, x: NDArray[np.float32], residual: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """The sum over non-zero weights and the epilogue, one output at a time."""
    output = np.zeros((len(x), *spec.output_shape))
    for place in np.ndindex(output.shape):
        total = float(weights.bias[place[1]])
        total += sum(float(w) * float(element) for _, w, element in terms(spec, weights, x, place))
        for step in spec.epilogue:
            if isinstance(step, AddResidual):
                assert residual is not None
                total += float(residual[place])
            elif isinstance(step, LeakyRelu):
                total = total * step.slope if total < 0 else total
            elif not isinstance(step, Clip):
                total = function_of(step).compute(np.array(total)).item()
            else:
                total = step.low if step.low is not None and total < step.low else total
                total = step.high if step.high is not None and total > step.high else total
        output[place] = total
    return output
