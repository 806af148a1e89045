"""PyTorch modules compared with compiled layers: digests of weights, attributes, epilogue steps."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional

from codegen.frontend.onnx.extract.convolution import output_channels_first
from codegen.frontend.onnx.extract.weights import rounded
from codegen.frontend.onnx.fuse.folding import Affine, batch_normalization, folded
from codegen.ir.checkpoint import Weights
from codegen.ir.epilogue import POOL_STRIDE
from codegen.ir.layer_spec import (
    AddResidual,
    Clip,
    ConvTranspose2d,
    DataType,
    Gelu,
    HardSigmoid,
    HardSwish,
    LayerSpec,
    LeakyRelu,
    Linear,
    MaxPool,
    Mish,
    Sigmoid,
    Step,
    Swish,
    Tanh,
)

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_TYPES: dict[torch.dtype, DataType] = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def is_swappable(module: nn.Module) -> bool:
    """Whether a module has a type and data type that a compiled layer can replace."""
    return isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED, nn.Linear)) and module.weight.dtype in _TYPES


def is_norm(module: nn.Module | None) -> bool:
    """Whether a module is a normalisation that can be folded into the module before it."""
    return isinstance(module, _NORMS) and module.running_mean is not None and module.running_var is not None


def digests_of(module: nn.Module, norm: nn.Module | None) -> Iterator[str]:
    """Possible digests of a module's weights with a following normalisation folded in, as in a bundle's manifest.

    The farm folds in float64; an exporter may have folded before, in the weights' own data type.
    """
    kernel, bias = _arrays(module)
    kind = _TYPES[module.weight.dtype]
    kernels = len(kernel)
    if norm is None:
        yield folded(kernel, bias, 1.0, Affine(np.ones(kernels), np.zeros(kernels)), kind).digest
        return
    scale, shift, mean, variance = _norm_tensors(norm)
    doubles = [each.double().numpy() for each in (scale, shift, mean, variance)]
    epsilon = float(np.float32(norm.eps))  # as ONNX has it
    affine = batch_normalization(doubles[0], doubles[1], doubles[2], doubles[3], epsilon)
    yield folded(kernel, bias, 1.0, affine, kind).digest
    # PyTorch's exporters differ in the last bit: one divides by torch's square root, the other by NumPy's.
    moved = variance + norm.eps
    numpy_root = torch.from_numpy(np.sqrt(moved.float().numpy())).to(moved.dtype)
    for root in (torch.sqrt(moved), numpy_root):
        factor = scale / root
        shifted = (torch.from_numpy(bias).to(module.weight.dtype) - mean) * factor + shift
        scaled = kernel * factor.float().numpy().reshape(-1, *[1] * (kernel.ndim - 1))
        yield Weights(*(rounded(each.astype(np.float64), kind) for each in (scaled, shifted.double().numpy()))).digest


def module_difference(module: nn.Module, spec: LayerSpec) -> str:
    """Why a layer with a module's weights computes something else than the module; empty if it does not."""
    kernel, _ = _arrays(module)
    if kernel.reshape(kernel.shape[0], -1).shape != (spec.output_channels, spec.weights_count // spec.output_channels):
        return f"has weights of the shape {list(spec.weights_shape)}, the module {list(kernel.shape)}"
    if isinstance(spec, Linear):
        return "" if isinstance(module, nn.Linear) else "is linear"
    if isinstance(module, nn.Linear):
        return "is a convolution"
    if isinstance(spec, ConvTranspose2d) != isinstance(module, _TRANSPOSED):
        return "is transposed, the module is not" if isinstance(spec, ConvTranspose2d) else "is not transposed"
    if module.padding_mode != "zeros":
        return f"pads with zeros, the module by {module.padding_mode}"
    wanted = {"stride": spec.stride, "dilation": spec.dilation, "groups": spec.groups, "window": spec.weights_shape[2:]}
    had = {
        "stride": _pair(module.stride, 1),
        "dilation": _pair(module.dilation, 1),
        "groups": module.groups,
        "window": kernel.shape[2:],
    }
    if isinstance(module.padding, str):
        return "" if wanted == had else f"has {wanted}, the module {had}"
    top, left = _pair(module.padding, 0)
    wanted["padding"], had["padding"] = spec.padding, (top, left, top, left)
    if isinstance(spec, ConvTranspose2d):
        wanted["output padding"], had["output padding"] = spec.output_padding, _pair(module.output_padding, 0)
    differing = [name for name in wanted if _tuple_of(wanted[name]) != _tuple_of(had[name])]
    return f"has {differing[0]} {wanted[differing[0]]}, the module {had[differing[0]]}" if differing else ""


def step_of(node: fx.Node, modules: Mapping[str, nn.Module]) -> Step | None:
    """The epilogue step that a node of a traced model computes; None if it computes none."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        made = next((make for kind, make in _MODULE_STEPS.items() if type(module) is kind), None)
        return None if made is None else made(module)
    if node.target in _MAX_POOLS:
        return _pool(*node.args[1:], **node.kwargs)
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if node.target in (operator.add, operator.iadd, torch.add) or (
        node.op == "call_method" and name in ("add", "add_")
    ):
        return AddResidual() if len(node.args) == 2 and not node.kwargs else None
    made_of = _FUNCTION_STEPS.get(name.rstrip("_"))
    return None if made_of is None else made_of(node)


def _pool(
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    **_: Any,
) -> MaxPool | None:
    """The epilogue step for a max pool's arguments; None if there is none."""
    windows, strides, apart = ({*_tuple_of(each)} for each in (kernel_size, stride or kernel_size, dilation))
    if strides != {POOL_STRIDE} or apart != {1} or ceil_mode or return_indices:
        return None
    down, across = _tuple_of(padding)[0], _tuple_of(padding)[-1]
    if windows == {3} and {down, across} <= {0, 1}:
        return MaxPool(3, (down, across, down, across))
    return MaxPool() if windows == {2} and down == across == 0 else None


def same_step(wanted: Step, found: Step | None) -> bool:
    """Whether two steps are equal, with numbers compared at the precision of float32."""
    if type(wanted) is not type(found) or found is None:
        return False
    pairs = zip(astuple(wanted), astuple(found), strict=True)
    return all(
        math.isclose(a, b, rel_tol=1e-6) if isinstance(a, float | int) and isinstance(b, float | int) else a == b
        for a, b in pairs
    )


def _argument(node: fx.Node, position: int, name: str, default: Any) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


_MAX_POOLS = (functional.max_pool2d, torch.max_pool2d)
_MODULE_STEPS: dict[type[nn.Module], Callable[[Any], Step | None]] = {
    nn.ReLU: lambda _: Clip(low=0.0),
    nn.ReLU6: lambda _: Clip(0.0, 6.0),
    nn.Hardtanh: lambda module: Clip(float(module.min_val), float(module.max_val)),
    nn.LeakyReLU: lambda module: LeakyRelu(module.negative_slope),
    nn.PReLU: lambda module: LeakyRelu(module.weight.item()) if module.weight.numel() == 1 else None,
    nn.Sigmoid: lambda _: Sigmoid(),
    nn.Hardsigmoid: lambda _: HardSigmoid(1 / 6, 0.5),
    nn.Hardswish: lambda _: HardSwish(1 / 6, 0.5),
    nn.SiLU: lambda _: Swish(),
    nn.GELU: lambda module: Gelu(module.approximate),
    nn.Tanh: lambda _: Tanh(),
    nn.Mish: lambda _: Mish(),
    nn.MaxPool2d: lambda module: _pool(**vars(module)),
}
_FUNCTION_STEPS: dict[str, Callable[[fx.Node], Step]] = {
    "relu": lambda _: Clip(low=0.0),
    "relu6": lambda _: Clip(0.0, 6.0),
    "leaky_relu": lambda node: LeakyRelu(_argument(node, 1, "negative_slope", 0.01)),
    "sigmoid": lambda _: Sigmoid(),
    "hardsigmoid": lambda _: HardSigmoid(1 / 6, 0.5),
    "hardswish": lambda _: HardSwish(1 / 6, 0.5),
    "silu": lambda _: Swish(),
    "gelu": lambda node: Gelu(_argument(node, 1, "approximate", "none")),
    "tanh": lambda _: Tanh(),
    "mish": lambda _: Mish(),
}
"""Epilogue steps of functions and tensor methods, by name without the underscore of in-place variants."""


def _arrays(module: nn.Module) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Weights in the layout of the spec, and bias; -0.0 becomes 0.0."""
    kernel = module.weight.detach().float().cpu().numpy() + np.float32(0)
    if isinstance(module, _TRANSPOSED):
        kernel = output_channels_first(kernel, module.groups)
    if kernel.ndim == 3:
        kernel = kernel[:, :, None]
    bias = np.zeros(len(kernel)) if module.bias is None else module.bias.detach().double().cpu().numpy()
    return np.ascontiguousarray(kernel), bias


def _norm_tensors(norm: nn.Module) -> list[torch.Tensor]:
    """Scale, shift, mean and variance in their own data type, on the CPU."""
    scale = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight
    shift = torch.zeros_like(norm.running_var) if norm.bias is None else norm.bias
    return [each.detach().cpu() for each in (scale, shift, norm.running_mean, norm.running_var)]


def _pair(value: Any, first: int) -> tuple[int, int]:
    """Values for height and width; `first` is the one for the height of a 1-D module."""
    sizes = tuple(value) if isinstance(value, tuple | list) else (value, value)
    return (first, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])


def _tuple_of(value: Any) -> tuple[int, ...]:
    """A number or numbers as a tuple."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)
