"""The reader of bundles: the folders and archives that `farm fetch` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from codegen.errors import CheckpointError
from codegen.ir.launch import MOST_IMAGES, Launch
from codegen.ir.layer_spec import LayerSpec
from codegen.target.arch import arch_number, runs_on
from farm.bundle.manifest import (
    CubinEntry,
    LaunchEntry,
    LayerEntry,
    ManifestError,
    MissingEntry,
    NetworkEntry,
    ProvenanceEntry,
    PtxEntry,
    RuntimeFile,
    is_whole,
    one_line,
    read_manifest,
)
from farm.bundle.members import MANIFEST, Member, open_members
from farm.bundle.provenance import ProvenanceError, check_provenance
from farm.errors import BundleError, UsageError
from farm.signing import Keyring

if TYPE_CHECKING:
    from codegen.frontend.onnx.export.network import Network
    from codegen.frontend.onnx.export.segments import SegmentedNetwork

T = TypeVar("T")

NETWORK = "network.onnx"
"""The model with each compiled layer as one node. Its large constants may be in CONSTANTS."""
PLAN = "network.plan"
"""The plan by which the network runs without a framework."""
PLAN_FORMAT = "farm-plan 4"
"""First line of a plan; its number is raised when the format changes."""
CONSTANTS = "network.constants"
"""Constants that the plan's steps read."""
PROVENANCE = "provenance.json"
"""The in-toto statement about the other files."""
GLUE = "glue.ptx"
"""The kernels for the operators between the compiled layers."""


@dataclass(frozen=True)
class Cubin(Member):
    """A file with machine code of a layer, or with PTX that the driver compiles, and how to launch it."""

    arch: str
    """For PTX the virtual architecture, such as compute_80."""
    launch: Launch
    most_rows: int = MOST_IMAGES
    """Largest number of images or rows that it is meant for."""


@dataclass(frozen=True)
class BundledLayer:
    """A compiled layer."""

    name: str
    spec: LayerSpec
    has_residual: bool
    cubins: tuple[Cubin, ...]
    """Cubins for all architectures; those for one architecture and `most_rows` compute the layer, in any order."""
    ptx: tuple[Cubin, ...] = ()
    """For one virtual architecture. Empty unless the bundle was fetched with PTX."""
    weights_digest: str = ""
    nonzeros: int = 0
    rows_per_image: int | None = 1

    @property
    def writes_among_others(self) -> bool:
        """Whether the output may be channels of a larger tensor."""
        code = (*self.cubins, *self.ptx)
        return bool(code) and all(each.launch.output_step is not None for each in code)

    @property
    def most_input_step(self) -> int:
        """The largest distance in elements between two images of an input that is channels of a larger tensor.

        0 if the input cannot be such channels.
        """
        launches = [each.launch for each in (*self.cubins, *self.ptx)]
        if not launches or any(each.input_step is None for each in launches):
            return 0
        of_block = max(size.images or 1 for each in launches for size in each.grid)
        return (2**31 - 1) // of_block  # its offsets are int32

    def cubins_for(self, arch: str) -> tuple[Cubin, ...]:
        """The cubins or PTX that a GPU of this architecture runs; empty if there are none.

        Cubins for the architecture itself come first, then those for the nearest older one that it can run, then PTX
        for the architecture or an older one.
        """
        for candidate in sorted({each.arch for each in self.cubins}, key=arch_number, reverse=True):
            if runs_on(candidate, arch):
                return tuple(each for each in self.cubins if each.arch == candidate)
        return tuple(each for each in self.ptx if arch_number(each.arch) <= arch_number(arch))


class Bundle:
    """A bundle, read-only. Its files are read when they are needed."""

    def __init__(self, path: Path | str) -> None:
        """Raises BundleError, one line that names the path, if that is not a bundle."""
        self.path = Path(path)
        self._members = open_members(self.path)
        self._text = self._members.manifest()
        try:
            self.manifest = read_manifest(self._text)
        except ManifestError as error:
            raise BundleError(
                f"{self.path}: {MANIFEST} cannot be used: {error}. Fetch the bundle again with this version of farm"
            ) from None
        self.layers = layers_of(self.manifest.layers)

    @property
    def archs(self) -> tuple[str, ...]:
        return self.manifest.archs

    @property
    def missing(self) -> tuple[MissingEntry, ...]:
        """Layers that a partial bundle lacks."""
        return self.manifest.missing

    @property
    def has_network(self) -> bool:
        return self.manifest.network is not None

    @property
    def refused(self) -> str:
        """Why the network does not run by its plan; empty if it does, or if there is no network."""
        return one_line((self.manifest.runtime and self.manifest.runtime.refused) or "")

    @property
    def network(self) -> Network:
        """The model around the layers. Raises UsageError if the bundle has none, BundleError if it is damaged."""
        from codegen.frontend.onnx.export.network import read_network

        return self._read_network(read_network)

    @property
    def segments(self) -> SegmentedNetwork:
        """The model around the layers as models of its own, for onnxruntime. Raises as `network`."""
        from codegen.frontend.onnx.export.segments import segmented

        return self._read_network(segmented)

    def _read_network(self, read: Callable[[bytes, bytes], T]) -> T:
        if missing := self.missing:
            raise UsageError(
                f"{self.path} is a partial bundle without a network: {missing[0].name} was not compiled "
                f"({missing[0].reason}): run farm retry, then farm fetch"
            )
        if self.manifest.network is None:
            raise UsageError(
                f"{self.path} has layers but no network: its job kept none. Compile an ONNX model to get one"
            )
        data, constants = self._members.read(_member(self.manifest.network)), self.constants
        try:
            return read(data, constants)
        except CheckpointError as error:
            reason = one_line(str(error))
            raise BundleError(f"{self.path}: {NETWORK} is damaged: {reason}. Fetch the bundle again") from None

    def cubin(self, cubin: Cubin) -> bytes:
        """A file's bytes, for cuModuleLoadData. Raises BundleError if it is missing or damaged."""
        return self._members.read(cubin)

    def files(self) -> dict[str, Member]:
        """Every file but the manifest, by its path."""
        provenance = _member(self.manifest.provenance)
        return {**self._subjects(), provenance.path: provenance}

    def _subjects(self) -> dict[str, Member]:
        """The files that the provenance is about."""
        found: list[Member] = [each for layer in self.layers.values() for each in (*layer.cubins, *layer.ptx)]
        if self.manifest.network is not None:
            found.append(_member(self.manifest.network))
        return {each.path: each for each in found} | self._runtime_files()

    @property
    def file_bytes(self) -> int:
        """Size of all existing files, unpacked, with the manifest."""
        return sum(map(self._members.size, (MANIFEST, *self.files())))

    def damage(self, keys: Keyring | None = None) -> Sequence[str]:
        """A message for every file that is missing or damaged, the manifest among them.

        With `keys` also if the bundle is not as one of them signed it.
        """
        found = []
        if not is_whole(self._text, self.manifest.sha256):
            found.append(
                f"{self.path}: {MANIFEST} is damaged: its digest differs from the one in it. Fetch the bundle again"
            )
        for member in self.files().values():
            try:
                self._members.read(member)
            except BundleError as error:
                found.append(str(error))
        if keys is not None and not found:
            digests = {path: member.sha256 for path, member in self._subjects().items()}
            try:
                check_provenance(self._members.read(_member(self.manifest.provenance)), self._text, digests, keys)
            except ProvenanceError as error:
                way_out = "Fetch it with --sign, or name the farm's public key"
                found.append(f"{self.path}: {PROVENANCE} cannot be trusted: {error}. {way_out}")
        return found

    @property
    def plan(self) -> bytes:
        """The text of the plan by which the network runs without a framework.

        Raises UsageError if the bundle has none, BundleError if it is damaged.
        """
        text = self._runtime_file(PLAN)
        if not text:
            raise UsageError(
                f"{self.path} has no {PLAN}: it is a partial bundle, or its job kept no network. "
                "Compile an ONNX model, then farm fetch"
            )
        return text

    @property
    def constants(self) -> bytes:
        """The constants that the plan's steps read."""
        return self._runtime_file(CONSTANTS)

    @property
    def glue(self) -> bytes:
        """The PTX of the glue kernels; empty if the plan needs none."""
        return self._runtime_file(GLUE)

    def _runtime_file(self, name: str) -> bytes:
        member = self._runtime_files().get(name)
        return b"" if member is None else self._members.read(member)

    def _runtime_files(self) -> dict[str, Member]:
        runtime = self.manifest.runtime
        return {each.path: _member(each) for each in runtime.files} if runtime else {}


def layers_of(entries: Sequence[LayerEntry]) -> dict[str, BundledLayer]:
    """The layers of a manifest by their names."""
    return {each.name: _layer(each) for each in entries}


def _layer(entry: LayerEntry) -> BundledLayer:
    launches = entry.launches
    return BundledLayer(
        entry.name,
        entry.layer_spec,
        entry.tensors.residual is not None,
        tuple(_cubin(cubin, arch, each) for each in launches for arch, cubin in each.cubins.items()),
        tuple(_cubin(each.ptx, each.ptx.arch, each) for each in launches if each.ptx is not None),
        entry.weights.sha256,
        entry.weights.nonzeros,
        entry.rows_per_image,
    )


def _member(entry: NetworkEntry | ProvenanceEntry | RuntimeFile) -> Member:
    return Member(entry.path, entry.sha256, entry.bytes)


def _cubin(entry: CubinEntry | PtxEntry, arch: str, of: LaunchEntry) -> Cubin:
    return Cubin(entry.path, entry.sha256, entry.bytes, arch, of.launch, of.most_rows or MOST_IMAGES)
