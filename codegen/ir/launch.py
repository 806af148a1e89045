"""Kernel launches, as the manifest describes them and the emulator and the GPU run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from codegen.errors import LaunchError
from codegen.ir.layer_spec import AddResidual, DataType, LayerSpec, is_bounded, is_gated

MOST_BLOCKS = (2**31 - 1, 65_535, 65_535)
"""Most blocks of a grid in x, y and z, on every architecture."""
NUMBERS = ("images", "output_step", "input_step")
"""Arguments that are int32; the others are pointers."""
LISTS = {"count": "int32*", "places": "int32*", "marks": "uint8*"}
"""Pointers of kernels of listed columns that are not pointers to elements."""
MOST_IMAGES = 2**30
"""Image numbers are int32, those of the last block too, which may reach beyond the batch."""


def tensors_of(spec: LayerSpec) -> tuple[str, ...]:
    """Names of a layer's tensors in its launches."""
    residual = ("residual",) if AddResidual() in spec.epilogue else ()
    return ("input", "output", *residual, *(("gate",) if is_gated(spec) else ()))


def numbers_of(spec: LayerSpec) -> tuple[str, ...]:
    """Names of the int32 arguments of a convolution; a bounded one, which often reads a Concat, has `input_step`."""
    return NUMBERS if is_bounded(spec) else NUMBERS[:2]


@dataclass(frozen=True)
class GridSize:
    """One dimension of the grid: `fixed` blocks, times one per `images` images of the batch where that is set."""

    fixed: int = 1
    images: int | None = None

    def at(self, batch: int) -> int:
        return self.fixed * (1 if self.images is None else -(-batch // self.images))


@dataclass(frozen=True)
class Launch:
    """One kernel launch; grid and block are x, y, z.

    The arguments, in order: `input`, `output`, of layers that add one `residual` and of gated ones `gate` are pointers
    to elements, at multiples of 16 bytes; `images` is the int32 number of images in the batch, or of rows of a Linear.
    Convolutions have an int32 `output_step`, the elements from one image of the output to the next, so that they may
    write channels of a larger tensor: such an output may begin at any element. Bounded ones have an `input_step` too:
    their input may be channels of a larger tensor, whose images begin at multiples of 16 bytes. Kernels of listed
    columns also have `count`, how many columns there are, `places`, where the input of each is (null: in its own
    place), and `marks`, a byte for each; all are pointers.
    """

    kernel: str
    grid: tuple[GridSize, GridSize, GridSize]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory."""
    arguments: tuple[str, ...] = ("input", "output", "images")
    data_type: DataType = "float32"
    """Data type of the elements."""
    output_step: int | None = None
    """Value of this argument for a contiguous output; None for kernels without the argument."""
    input_step: int | None = None
    """Value of this argument for a contiguous input; None for kernels without it."""
    waits: bool = False
    """Whether the kernel itself waits for the one before it: from sm_90 on it may begin before that has ended."""

    @property
    def images_limit(self) -> int:
        """The most images that one launch takes."""
        sizes = zip(self.grid, MOST_BLOCKS, strict=True)
        return min([MOST_IMAGES, *(most // size.fixed * size.images for size, most in sizes if size.images)])

    def grid_at(self, batch: int) -> tuple[int, int, int]:
        """The grid for a batch. Raises LaunchError for a grid that no GPU takes."""
        x, y, z = (size.at(batch) for size in self.grid)
        if batch > self.images_limit or any(size > most for size, most in zip((x, y, z), MOST_BLOCKS, strict=True)):
            raise LaunchError(
                f"a launch of {self.kernel} with {batch:,} images is a grid of {x:,} x {y:,} x {z:,} blocks, more than "
                f"a GPU takes: give it at most {self.images_limit:,} images at a time"
            )
        return x, y, z

    @property
    def tensors(self) -> tuple[str, ...]:
        """The arguments that are pointers."""
        return tuple(name for name in self.arguments if name not in NUMBERS)

    def numbers(self, images: int) -> dict[str, int]:
        """The int32 arguments for a number of images, with contiguous input and output."""
        return {"images": images, **self._steps}

    @property
    def _steps(self) -> dict[str, int]:
        steps = {"output_step": self.output_step, "input_step": self.input_step}
        return {name: step for name, step in steps.items() if step is not None}

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "grid": [{"fixed": size.fixed, "images": size.images} for size in self.grid],
            "block": list(self.block),
            "shared_bytes": self.shared_bytes,
            "arguments": [self._argument(name) for name in self.arguments],
            **({"waits": True} if self.waits else {}),
        }

    def _argument(self, name: str) -> dict[str, Any]:
        contiguous = {"contiguous": self._steps[name]} if name in self._steps else {}
        kind = "int32" if name in NUMBERS else LISTS.get(name, f"{self.data_type}*")
        return {"name": name, "type": kind, **contiguous}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Launch:
        """Reads what `to_json` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        x, y, z = (GridSize(**size) for size in value["grid"])
        width, height, depth = map(int, value["block"])
        types = {argument["name"]: str(argument["type"]).removesuffix("*") for argument in value["arguments"]}
        (data_type,) = {of for name, of in types.items() if name not in (*NUMBERS, *LISTS)}
        steps = {each["name"]: int(each["contiguous"]) for each in value["arguments"] if each["name"] in NUMBERS[1:]}
        if data_type not in get_args(DataType):
            raise ValueError(f"a launch with elements of {data_type}")
        return Launch(
            kernel=str(value["kernel"]),
            grid=(x, y, z),
            block=(width, height, depth),
            shared_bytes=int(value["shared_bytes"]),
            arguments=tuple(types),
            data_type=cast("DataType", data_type),
            output_step=steps.get("output_step"),
            input_step=steps.get("input_step"),
            waits=bool(value.get("waits", False)),
        )
