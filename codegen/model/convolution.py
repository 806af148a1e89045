"""The ONNX operator Conv: what its attributes say about a layer, and which of it can be compiled."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.errors import CheckpointError
from codegen.model.input_shapes import Size, size_in_words
from codegen.spec import Conv2d


class UnsupportedError(Exception):
    """Why a node is not compiled, in words."""


class UnknownSizeError(Exception):
    """Height or width of the input is not known before the model runs."""


@dataclass(frozen=True)
class ConvAttributes:
    """The attributes of a 2-D Conv, with ONNX's defaults; `pads` is top, left, bottom, right."""

    kernel_shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    group: int = 1
    auto_pad: str = "NOTSET"

    def padding(self, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, int, int, int]:
        """The padding in input elements, auto_pad resolved for an input of this height and width.

        SAME keeps ceil(size / stride) outputs; the odd element goes to the end (UPPER) or the beginning (LOWER).
        """
        if self.auto_pad == "NOTSET":
            top, left, bottom, right = self.pads
            return top, left, bottom, right
        if self.auto_pad == "VALID":
            return 0, 0, 0, 0
        if self.auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
            raise CheckpointError(f"auto_pad is '{self.auto_pad}', which ONNX does not know: export the model again")
        sides = []
        for elements, extent, stride in zip(size, kernel, self.strides, strict=True):
            total = max((-(-elements // stride) - 1) * stride + extent - elements, 0)
            small, large = total // 2, total - total // 2
            sides.append((small, large) if self.auto_pad == "SAME_UPPER" else (large, small))
        (top, bottom), (left, right) = sides
        return top, left, bottom, right


def conv2d_spec(attributes: ConvAttributes, weights_shape: tuple[int, ...], input_size: Size | None) -> Conv2d:
    """The spec of a Conv with weights [K, C, R, S] on an input [N, C, H, W]; None where the input is not known.

    Raises UnsupportedError for what is not compiled, UnknownSizeError if height or width is not known, and
    CheckpointError for a node that no program could run.
    """
    if len(weights_shape) != 4 or min(weights_shape) < 1:
        raise CheckpointError(
            f"its weights have the shape {list(weights_shape)}, not [K, C, R, S]: export the model again"
        )
    if attributes.group != 1:
        raise UnsupportedError(f"it is a convolution in {attributes.group} groups; only group 1 is compiled")
    if attributes.dilations != (1, 1):
        raise UnsupportedError(f"its dilations are {list(attributes.dilations)}; only dilation 1 is compiled")
    kernels, channels, kernel_height, kernel_width = weights_shape
    kernel = kernel_height, kernel_width
    if attributes.kernel_shape not in (None, kernel):
        raise _misfit(weights_shape, f"the attribute kernel_shape {list(attributes.kernel_shape or ())}")
    if min(attributes.strides) < 1:
        raise CheckpointError(f"its strides are {list(attributes.strides)}, less than 1: export the model again")
    if min(attributes.pads) < 0:
        raise UnsupportedError(f"its pads are {list(attributes.pads)}; negative padding (cropping) is not compiled")
    if input_size is None:
        raise UnknownSizeError
    if len(input_size) != 4 or input_size[1] not in (None, channels):
        raise _misfit(weights_shape, f"an input of the shape {size_in_words(input_size)}")
    height, width = input_size[2:]
    if height is None or width is None:
        raise UnknownSizeError
    stride_y, stride_x = attributes.strides
    padding = attributes.padding((height, width), kernel)
    spec = Conv2d(channels, height, width, kernels, *kernel, (stride_y, stride_x), padding)
    if spec.output_height < 1 or spec.output_width < 1:
        raise _misfit(weights_shape, f"an input of the shape {size_in_words(input_size)} with pads {list(padding)}")
    return spec


def _misfit(weights_shape: tuple[int, ...], other: str) -> CheckpointError:
    return CheckpointError(f"its weights of the shape {list(weights_shape)} do not fit {other}: export the model again")
