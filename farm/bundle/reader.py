"""The reader of bundles: the folders and archives that `farm fetch` writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec, spec_from_json
from codegen.target.arch import arch_number, runs_on
from farm.errors import UsageError

if TYPE_CHECKING:
    from codegen.frontend.onnx.export.network import Network

MANIFEST = "manifest.json"
NETWORK = "network.onnx"
"""The model with each compiled layer as one node. Its large constants may be in CONSTANTS."""
PLAN = "network.plan"
"""The plan by which the network runs without a framework."""
PLAN_FORMAT = "farm-plan 1"
"""First line of a plan; its number is raised when the format changes."""
CONSTANTS = "network.constants"
"""Constants that the plan's steps read."""
GLUE = "glue.ptx"
"""The kernels for the operators between the compiled layers."""
SCHEMA_VERSION = 1
"""Version of the manifest, raised when a reader of the version before would be misled."""
NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Cubin:
    """A file with machine code of a layer, or with PTX that the driver compiles, and how to launch it."""

    path: str
    sha256: str
    bytes: int
    arch: str
    """For PTX the virtual architecture, such as compute_80."""
    launch: Launch


@dataclass(frozen=True)
class BundledLayer:
    """A compiled layer."""

    name: str
    spec: LayerSpec
    has_residual: bool
    cubins: tuple[Cubin, ...]
    """For all architectures. Those of one architecture together compute the layer, in any order."""
    ptx: tuple[Cubin, ...] = ()
    """For one virtual architecture; together they compute the layer. Empty unless the bundle was fetched with PTX."""
    weights: Mapping[str, Any] = field(default_factory=dict)
    """The manifest's entry, with `count` and `nonzeros`."""
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
        """Raises UsageError, one line that names the path, if that is not a bundle."""
        self.path = Path(path)
        self._folder = self.path.is_dir()
        try:
            self.manifest: Mapping[str, Any] = json.loads(self._bytes(MANIFEST))
            version = self.manifest["schema_version"]
            if version != SCHEMA_VERSION:
                raise UsageError(
                    f"{self.path}: its manifest has version {version}, this program reads version {SCHEMA_VERSION}: "
                    "fetch it again with this version of farm"
                )
            self._digest = str(self.manifest["sha256"])
            self.layers = layers_of(self.manifest["layers"])
        except FileNotFoundError:
            fault = f"it has no {MANIFEST}" if self.path.exists() else "it does not exist"
            raise UsageError(f"{self.path} is not a bundle: {fault}. farm fetch writes one") from None
        except (BadZipFile, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path} is not a bundle ({error}): farm fetch writes one") from None

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(self.manifest["archs"])

    @property
    def missing(self) -> Sequence[Mapping[str, Any]]:
        """Layers that a partial bundle lacks, each with name, operator, archs and reason."""
        return tuple(self.manifest.get("missing", ()))

    @property
    def has_network(self) -> bool:
        return "network" in self.manifest

    @property
    def network(self) -> Network:
        """The model around the layers. Raises UsageError if the bundle has none or it is damaged."""
        if missing := self.missing:
            raise UsageError(
                f"{self.path} is a partial bundle without a network: {missing[0]['name']} was not compiled "
                f"({missing[0]['reason']}): run farm retry, then farm fetch"
            )
        if not self.has_network:
            raise UsageError(
                f"{self.path} has layers but no network: its job kept none. Compile an ONNX model to get one"
            )
        from codegen.frontend.onnx.export.network import read_network

        return read_network(self.read(NETWORK, self.manifest["network"]["sha256"]), self.constants)

    def cubin(self, cubin: Cubin) -> bytes:
        """A file's bytes, for cuModuleLoadData. Raises UsageError if it is missing or damaged."""
        return self.read(cubin.path, cubin.sha256)

    def read(self, name: str, sha256: str) -> bytes:
        """The bytes of a file with that digest. Raises UsageError if it is missing or damaged."""
        try:
            data = self._bytes(name)
        except FileNotFoundError:
            raise UsageError(f"{self.path}: {name} is missing: fetch the bundle again") from None
        except BadZipFile as error:
            raise UsageError(f"{self.path}: {name} is damaged ({error}): fetch the bundle again") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UsageError(
                f"{self.path}: {name} is damaged: its digest differs from the manifest's. Fetch the bundle again"
            )
        return data

    def files(self) -> dict[str, str]:
        """The digest of every file but the manifest, by name."""
        found = {each.path: each.sha256 for layer in self.layers.values() for each in (*layer.cubins, *layer.ptx)}
        if self.has_network:
            found[NETWORK] = self.manifest["network"]["sha256"]
        return found | self._runtime_digests()

    @property
    def file_bytes(self) -> int:
        """Size of all existing files, unpacked, with the manifest."""
        names = (MANIFEST, *self.files())
        if self._folder:
            return sum(path.stat().st_size for name in names if (path := self.path / name).is_file())
        return sum(each.file_size for each in self._archive.infolist() if each.filename in names)

    def damage(self) -> Sequence[str]:
        """A message for every file that is missing or damaged, the manifest among them."""
        found = []
        if not is_whole(self._bytes(MANIFEST), self._digest):
            found.append(
                f"{self.path}: {MANIFEST} is damaged: its digest differs from the one in it. Fetch the bundle again"
            )
        for name, sha256 in self.files().items():
            try:
                self.read(name, sha256)
            except UsageError as error:
                found.append(str(error))
        return found

    @property
    def plan(self) -> str:
        """The plan by which the network runs without a framework.

        Raises UsageError if the bundle has none or one of another version.
        """
        text = self._runtime_file(PLAN)
        if not text:
            raise UsageError(
                f"{self.path} has no {PLAN}: it is a partial bundle, or its job kept no network. "
                "Compile an ONNX model, then farm fetch"
            )
        plan = text.decode()
        if plan.partition("\n")[0] != PLAN_FORMAT:
            raise UsageError(
                f"{self.path}: its {PLAN} has another version than {PLAN_FORMAT}: "
                "fetch the bundle again with this version of farm"
            )
        return plan

    @property
    def constants(self) -> bytes:
        """The constants that the plan's steps read."""
        return self._runtime_file(CONSTANTS)

    @property
    def glue(self) -> bytes:
        """The PTX of the glue kernels; empty if the plan needs none."""
        return self._runtime_file(GLUE)

    def _runtime_file(self, name: str) -> bytes:
        digest = self._runtime_digests().get(name)
        return b"" if digest is None else self.read(name, digest)

    def _runtime_digests(self) -> dict[str, str]:
        return {each["path"]: each["sha256"] for each in self.manifest.get("runtime", {"files": ()})["files"]}

    def _bytes(self, name: str) -> bytes:
        """Raises FileNotFoundError and BadZipFile."""
        if self._folder:
            return (self.path / name).read_bytes()
        try:
            return self._archive.read(name)
        except KeyError:
            raise FileNotFoundError(f"no {name} in it") from None

    @cached_property
    def _archive(self) -> ZipFile:
        """The archive, open as long as the bundle, so that its directory is read once for hundreds of files."""
        return ZipFile(self.path)


def with_digest(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as a file whose first entry, `sha256`, is the digest of the file with zeros in that place."""
    text = json.dumps({"sha256": NO_DIGEST, **manifest}, indent=2, ensure_ascii=False).encode() + b"\n"
    return text.replace(NO_DIGEST.encode(), hashlib.sha256(text).hexdigest().encode(), 1)


def is_whole(manifest: bytes, sha256: str) -> bool:
    """Whether a manifest is as `with_digest` wrote it."""
    return hashlib.sha256(manifest.replace(sha256.encode(), NO_DIGEST.encode(), 1)).hexdigest() == sha256


def layers_of(manifest: Sequence[Mapping[str, Any]]) -> dict[str, BundledLayer]:
    """The layers of a manifest by their names."""
    return {each["name"]: _layer(each) for each in manifest}


def _layer(value: Mapping[str, Any]) -> BundledLayer:
    launches = [(Launch.from_json(launch), launch) for launch in value["launches"]]
    return BundledLayer(
        value["name"],
        spec_from_json(value["spec"]),
        "residual" in value["tensors"],
        tuple(_cubin(cubin, arch, launch) for launch, entry in launches for arch, cubin in entry["cubins"].items()),
        tuple(_cubin(entry["ptx"], entry["ptx"]["arch"], launch) for launch, entry in launches if "ptx" in entry),
        value["weights"],
        value["rows_per_image"],
    )


def _cubin(value: Mapping[str, Any], arch: str, launch: Launch) -> Cubin:
    return Cubin(value["path"], value["sha256"], value["bytes"], arch, launch)
