"""The manifest of a bundle, `manifest.json`: every member's type and range, and a strict reader."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, reduce
from math import prod
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, cast, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    RootModel,
    StringConstraints,
    ValidationError,
    create_model,
    model_validator,
)

from codegen.ir.epilogue import STEPS
from codegen.ir.launch import MOST_BLOCKS, NUMBERS, GridSize, Launch, tensors_of
from codegen.ir.layer_spec import Conv2d, ConvTranspose2d, DataType, LayerSpec, Linear, spec_from_json
from farm.bundle.members import MOST_MEMBER_BYTES
from farm.errors import printable

SCHEMA_VERSION = 3
"""Version of the manifest, raised when a reader of the version before would be misled."""
NO_DIGEST = "0" * 64
MOST_ARGUMENTS = 7
"""Most arguments of a launch: one of each name."""
MOST_THREADS = 1024
"""Threads of a block, on every architecture."""
_MOST_MEMBERS = 1000
"""Most members of one JSON object; the widest have one for each architecture."""
_MOST_REASON = 200
_STEM = "[A-Za-z0-9][A-Za-z0-9._-]*"
_T = TypeVar("_T")

Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Arch = Annotated[str, StringConstraints(pattern="^sm_[1-9][0-9]{1,3}[a-z]?$")]
VirtualArch = Annotated[str, StringConstraints(pattern="^compute_[1-9][0-9]{1,3}$")]
Name = Annotated[str, StringConstraints(min_length=1)]
Identifier = Annotated[str, StringConstraints(pattern="^[A-Za-z_$][A-Za-z0-9_$]*$", max_length=1024)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""An int32, as kernels take it."""
FileSize = Annotated[int, Field(ge=1, le=MOST_MEMBER_BYTES)]
Many = Annotated[tuple[_T, ...], FailFast()]
Several = Annotated[tuple[_T, ...], Field(min_length=1), FailFast()]
Timestamp = Annotated[str, AfterValidator(lambda text: datetime.fromisoformat(text) and text)]


class ManifestError(ValueError):
    """A manifest that is no manifest of this version. The message is the reason alone, one line."""


class Strict(BaseModel):
    """A JSON object without unknown members, and without values of another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Entry(Strict):
    """A JSON object of the manifest. An optional member is absent, not null."""

    @model_validator(mode="after")
    def _no_null(self) -> Self:
        fields = type(self).model_fields
        for name in self.model_fields_set:
            if getattr(self, name) is None and not fields[name].is_required():
                raise ValueError(f"{name} is null")
        return self


class JobEntry(Entry):
    """The job that made the bundle."""

    id: Annotated[str, StringConstraints(pattern="^[0-9a-f]{12}$")]
    name: str
    submitted_at: Timestamp


class ModelEntry(Entry):
    """The compiled model."""

    file: str
    """Name of the ONNX file."""
    sha256: Digest
    """Digest of the layers, their weights and the skipped layers, not of the file."""


class PortEntry(Entry):
    """An input or output of the network."""

    name: str
    dtype: str
    shape: tuple[Count | str | None, ...]
    """A string is the name of an open size; None is an open size without a name."""


class NetworkEntry(Entry):
    """The model as an ONNX file in which each compiled layer is one node."""

    path: Literal["network.onnx"]
    sha256: Digest
    bytes: FileSize
    inputs: Several[PortEntry]
    outputs: Several[PortEntry]


class RuntimeFile(Entry):
    """A file for programs without a framework."""

    path: Literal["network.plan", "network.constants", "glue.ptx"]
    sha256: Digest
    bytes: FileSize


class RuntimeEntry(Entry):
    """The files for programs without a framework."""

    files: Several[RuntimeFile]
    refused: str | None = None
    """Operators of the network that the runtime does not run; the plan then has the layers only."""


class ProvenanceEntry(Entry):
    """The in-toto statement about the bundle."""

    path: Literal["provenance.json"]
    sha256: Digest
    bytes: FileSize


class SkippedEntry(Entry):
    """A layer that is not compiled."""

    name: str
    operator: str
    reason: Name
    weights: Count | None
    multiply_adds: Count | None


class MissingEntry(Entry):
    """A layer that a partial bundle lacks for some architectures."""

    name: Name
    operator: Literal["conv2d", "conv_transpose2d", "linear"]
    archs: Several[Arch]
    reason: Name


class ImageTensor(Entry):
    """A tensor of images."""

    name: str
    dtype: DataType
    layout: Literal["NCHW"]
    shape: tuple[Literal["batch"], Size, Size, Size]


class RowTensor(Entry):
    """A tensor of rows, of a linear layer."""

    name: str
    dtype: DataType
    layout: Literal["NC"]
    shape: tuple[Literal["rows"], Size]


TensorEntry = Annotated[ImageTensor | RowTensor, Field(discriminator="layout")]


class TensorEntries(Entry):
    """The tensors of a layer, by the names of the launches' arguments."""

    input: TensorEntry
    output: TensorEntry
    residual: TensorEntry | None = None
    gate: TensorEntry | None = None


class WeightsEntry(Entry):
    """The weights of a layer, which are in its code."""

    sha256: Digest
    count: Positive
    nonzeros: Count
    sparsity: Annotated[float, Field(ge=0, le=1)]


class TilingEntry(RootModel[dict[str, int | str | bool]]):
    """A tiling, for people: no reader of bundles uses it."""


class TilingOfArchs(Entry):
    """The tiling of some architectures, at all batch sizes or at some."""

    archs: Several[Arch]
    batches: Many[Size] = ()
    """Empty: all batch sizes."""
    tiling: TilingEntry


class CubinEntry(Entry):
    """A cubin."""

    path: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\.cubin$", max_length=300),
    ]
    sha256: Digest
    bytes: FileSize
    optimisation: Annotated[int, Field(ge=0, le=3)]
    assembler: Literal["ptxas", "direct", "patch"]
    evidence: Annotated[str, StringConstraints(max_length=1000)] = ""
    registers: Count
    spill_bytes: Count
    ptx_sha256: Digest | None = None
    cubin_key: Digest
    template_key: Digest


class PtxEntry(Entry):
    """PTX of the cubins of the newest architecture."""

    path: Annotated[
        str, StringConstraints(pattern=rf"^{_STEM}/compute_[0-9]+(\.batch[0-9]+)?(\.part[0-9]+)?\.ptx$", max_length=300)
    ]
    sha256: Digest
    bytes: FileSize
    arch: VirtualArch


class GridEntry(Entry):
    """One dimension of a grid: `fixed` blocks, times one per `images` images where that is set."""

    fixed: Size
    images: Size | None


class ArgumentEntry(Entry):
    """An argument of a kernel."""

    name: Literal["input", "output", "residual", "gate", "images", "output_step", "input_step"]
    type: Literal["float32*", "float16*", "bfloat16*", "int32"]
    contiguous: Size | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check((self.type == "int32") == (self.name in NUMBERS), "the type does not fit the name")
        _check((self.contiguous is not None) == (self.name in NUMBERS[1:]), "contiguous belongs to steps")
        return self


class LaunchEntry(Entry):
    """A launch of a kernel, and the cubins that have it."""

    kernel: Identifier
    grid: tuple[GridEntry, GridEntry, GridEntry]
    block: tuple[Size, Size, Size]
    shared_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)]
    waits: Literal[True] | None = None
    arguments: Annotated[Many[ArgumentEntry], Field(max_length=MOST_ARGUMENTS)]
    images_limit: Size
    most_rows: Size | None = None
    """Largest number of images, or of rows of a linear layer, that it is meant for; None: any number."""
    cubins: Annotated[dict[Arch, CubinEntry], Field(min_length=1)]
    ptx: PtxEntry | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [each.name for each in self.arguments]
        _check({"input", "output", "images"} <= {*names} and len({*names}) == len(names), "arguments are not distinct")
        _check(len(self._data_types) == 1, "arguments have several data types")
        _check(prod(self.block) <= MOST_THREADS, f"a block has more than {MOST_THREADS:,} threads")
        most = all(size.fixed <= most for size, most in zip(self.grid, MOST_BLOCKS, strict=True))
        _check(most, "the grid is larger than a GPU takes")
        _check(self.images_limit == self.launch.images_limit, "images_limit is not that of the grid")
        return self

    @property
    def _data_types(self) -> set[str]:
        return {each.type.removesuffix("*") for each in self.arguments if each.name not in NUMBERS}

    @cached_property
    def launch(self) -> Launch:
        """The launch as the runtimes use it."""
        [data_type] = self._data_types
        steps = {each.name: each.contiguous for each in self.arguments}
        x, y, z = (GridSize(each.fixed, each.images) for each in self.grid)
        return Launch(
            kernel=self.kernel,
            grid=(x, y, z),
            block=self.block,
            shared_bytes=self.shared_bytes,
            arguments=tuple(each.name for each in self.arguments),
            data_type=cast("DataType", data_type),
            output_step=steps.get("output_step"),
            input_step=steps.get("input_step"),
            waits=bool(self.waits),
        )


def _derived(name: str, tag: str, kind: type[Any], **others: Any) -> type[Strict]:
    """The JSON object of one of codegen's dataclasses: `tag` says which, the other members are its fields.

    Members named in `others` are not optional.
    """
    types = get_type_hints(kind) | others
    fields: dict[str, Any] = {tag: (Literal[name], ...)}
    for each in dataclasses.fields(kind):
        is_required = each.default is dataclasses.MISSING or each.name in others
        fields[each.name] = types[each.name], ... if is_required else each.default
    made: type[Strict] = create_model(name, __base__=Strict, **fields)
    return made


if TYPE_CHECKING:
    SpecEntry = Strict
else:
    _STEPS = [_derived(name, "step", kind) for name, kind in STEPS.items()]
    _EPILOGUE = Many[Annotated[reduce(or_, _STEPS), Field(discriminator="step")]]
    _KINDS = {"conv2d": Conv2d, "conv_transpose2d": ConvTranspose2d, "linear": Linear}
    _SPECS = [_derived(name, "operator", kind, epilogue=_EPILOGUE) for name, kind in _KINDS.items()]
    SpecEntry = Annotated[reduce(or_, _SPECS), Field(discriminator="operator")]


class LayerEntry(Entry):
    """A compiled layer."""

    name: Name
    spec: SpecEntry
    folded: Many[str]
    """Nodes of the ONNX graph that are computed with this layer."""
    rows_per_image: Size | None
    """Rows per image of a linear layer; None if the model does not say. 1 for other layers."""
    tensors: TensorEntries
    weights: WeightsEntry
    tiling: TilingEntry | None = None
    """The tiling of all architectures."""
    tilings: Annotated[Many[TilingOfArchs], Field(min_length=2)] = ()
    """Instead of `tiling` where architectures or batch sizes have different ones."""
    launches: Several[LaunchEntry]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        spec = self.layer_spec
        _check((self.tiling is None) != (not self.tilings), "it needs either tiling or tilings")
        _check(self.weights.count == spec.weights_count, "weights.count is not that of the spec")
        _check(self.weights.nonzeros <= self.weights.count, "it has more non-zeros than weights")
        _check(
            (self.tensors.residual is not None) == ("residual" in tensors_of(spec)), "residual does not fit the spec"
        )
        unlimited = {arch for each in self.launches if each.most_rows is None for arch in each.cubins}
        _check(all(each.cubins.keys() <= unlimited for each in self.launches), "no launch is for any number of images")
        for each in self.launches:
            launch = each.launch
            _check({*launch.tensors} == {*tensors_of(spec)}, "the arguments of a launch do not fit the spec")
            _check(launch.data_type == spec.data_type, "the data type of a launch is not that of the spec")
            _check(launch.output_step in (None, prod(spec.output_shape)), "output_step is not that of the spec")
            _check(launch.input_step in (None, prod(spec.input_shape)), "input_step is not that of the spec")
        return self

    @cached_property
    def layer_spec(self) -> LayerSpec:
        """The spec as codegen has it. Raises ValueError for sizes that no layer has."""
        value = self.spec.model_dump(exclude_unset=True)
        for name, number in _numbers(value):
            _check((0 if "padding" in name else 1) <= number < 2**31, f"{name} is {number}")
        spec = spec_from_json(value)
        if isinstance(spec, Linear):
            return spec
        _check(spec.channels % spec.groups == 0 == spec.output_channels % spec.groups, "groups do not divide channels")
        extents = [(size - 1) * by + 1 for size, by in zip(spec.weights_shape[2:], spec.dilation, strict=True)]
        _check(all(0 < size < 2**31 for size in (*extents, *spec.output_shape)), "a size is out of range")
        return spec


class Manifest(Entry):
    """The manifest: everything that a program needs to launch the compiled layers of one checkpoint."""

    sha256: Digest
    """Digest of the file with zeros in the place of this value, its first one."""
    schema_version: int
    job: JobEntry
    model: ModelEntry
    archs: Several[Arch]
    batches: Several[Size]
    """Numbers of images for which the tilings were chosen, ascending."""
    toolchain: dict[str, str]
    network: NetworkEntry | None = None
    runtime: RuntimeEntry | None = None
    layers: Several[LayerEntry]
    """In an order in which they can run."""
    skipped: Many[SkippedEntry]
    missing: Several[MissingEntry] = ()
    """Only of a partial bundle, which has no network."""
    provenance: ProvenanceEntry

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check({"nvcc", "ptxas"} <= self.toolchain.keys(), "toolchain lacks nvcc or ptxas")
        _check(self.network is None or not self.missing, "a partial bundle has no network")
        _distinct("archs", self.archs)
        _check(list(self.batches) == sorted({*self.batches}), "batches do not ascend")
        _distinct("layers", [each.name for each in self.layers])
        launches = [launch for layer in self.layers for launch in layer.launches]
        files = [file.path for launch in launches for file in (*launch.cubins.values(), launch.ptx) if file is not None]
        _distinct("files", [*files, *(each.path for each in (self.runtime.files if self.runtime else ()))])
        _check(all(launch.cubins.keys() <= {*self.archs} for launch in launches), "archs lacks one of a cubin")
        return self


def read_manifest(data: bytes) -> Manifest:
    """Reads a manifest. Raises ManifestError for anything that this version of farm does not write."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object)
        version = value.get("schema_version") if isinstance(value, dict) else None
        if isinstance(version, int) and version != SCHEMA_VERSION:
            raise ManifestError(f"it has version {version}, this program reads version {SCHEMA_VERSION}")
        return Manifest.model_validate_json(data)
    except RecursionError:
        raise ManifestError("it is nested too deeply") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ManifestError(one_line(f"{where}: {first['msg'].removeprefix('Value error, ')}")) from None
    except ValueError as error:
        raise ManifestError(one_line(str(error))) from None


def read_layers(entries: Sequence[Mapping[str, Any]]) -> tuple[LayerEntry, ...]:
    """The manifest's entries of layers, from JSON values."""
    return tuple(LayerEntry.model_validate_json(json.dumps(each)) for each in entries)


def with_digest(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as a file whose first entry, `sha256`, is the digest of the file with zeros in that place."""
    text = json.dumps({"sha256": NO_DIGEST, **manifest}, indent=2, ensure_ascii=False).encode() + b"\n"
    return text.replace(NO_DIGEST.encode(), hashlib.sha256(text).hexdigest().encode(), 1)


def is_whole(manifest: bytes, sha256: str) -> bool:
    """Whether a manifest is as `with_digest` wrote it."""
    return hashlib.sha256(manifest.replace(sha256.encode(), NO_DIGEST.encode(), 1)).hexdigest() == sha256


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("an object has two members of the same name")
    if len(found) > _MOST_MEMBERS:
        raise ValueError(f"an object has more than {_MOST_MEMBERS:,} members")
    return found


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """The integers of a spec, but those of its epilogue, each with the name of its field."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _numbers(each, key) if key != "epilogue" else ()
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each, name)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield name, value


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _distinct(what: str, names: Sequence[str]) -> None:
    _check(len({*names}) == len(names), f"two {what} are the same")


def one_line(text: str) -> str:
    """Text of an untrusted file as one printable line."""
    shown = printable(text)
    return shown if len(shown) <= _MOST_REASON else f"{shown[:_MOST_REASON]}..."
