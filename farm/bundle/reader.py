"""A bundle that `farm fetch` wrote, opened: a folder, or one file."""

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
"""The model with each compiled layer as one node; its large constants may be in CONSTANTS."""
PLAN = "network.plan"
PLAN_FORMAT = "farm-plan 3"
"""The first line of a plan; raised when its format changes."""
"""How the network runs without a framework."""
CONSTANTS = "network.constants"
REST = "glue.ptx"
SCHEMA_VERSIONS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
"""Of manifests that this program reads."""
NO_DIGEST = "0" * 64


@dataclass(frozen=True)
class Cubin:
    """One file of a layer, and how it is launched: machine code, or PTX that the driver makes into some."""

    path: str
    sha256: str
    bytes: int
    arch: str
    """Of PTX the virtual one, as in compute_80."""
    launch: Launch


@dataclass(frozen=True)
class BundledLayer:
    """A compiled layer."""

    name: str
    spec: LayerSpec
    has_residual: bool
    cubins: tuple[Cubin, ...]
    """Of all architectures; those of one together compute the layer, in any order."""
    ptx: tuple[Cubin, ...] = ()
    """Of one virtual architecture, which together compute the layer too; empty unless the bundle was fetched so."""
    weights: Mapping[str, Any] = field(default_factory=dict)
    """Their `count` and `nonzeros`."""
    rows_per_image: int | None = 1

    @property
    def writes_among_others(self) -> bool:
        """Whether its output may be channels of a larger tensor."""
        code = (*self.cubins, *self.ptx)
        return bool(code) and all(each.launch.output_step is not None for each in code)

    @property
    def most_input_step(self) -> int:
        """Most elements from an image of its input to the next where it may be channels of a larger tensor, else 0."""
        launches = [each.launch for each in (*self.cubins, *self.ptx)]
        if not launches or any(each.input_step is None for each in launches):
            return 0
        of_block = max(size.images or 1 for each in launches for size in each.grid)
        return (2**31 - 1) // of_block  # its offsets are int32

    def cubins_for(self, arch: str) -> tuple[Cubin, ...]:
        """What a GPU of this architecture runs: its own cubins, else those of the nearest older one that it runs too,
        else the PTX, if that is not of a later one.

        Empty where there are none.
        """
        for candidate in sorted({each.arch for each in self.cubins}, key=arch_number, reverse=True):
            if runs_on(candidate, arch):
                return tuple(each for each in self.cubins if each.arch == candidate)
        return tuple(each for each in self.ptx if arch_number(each.arch) <= arch_number(arch))


class Bundle:
    """Read-only; its files are read when they are asked for."""

    def __init__(self, path: Path | str) -> None:
        """Raises UsageError, one line that names the path, for what is no bundle."""
        self.path = Path(path)
        self._folder = self.path.is_dir()
        try:
            self.manifest: Mapping[str, Any] = json.loads(self._bytes(MANIFEST))
            version = self.manifest["schema_version"]
            if version not in SCHEMA_VERSIONS:
                raise UsageError(
                    f"{self.path}: its manifest has the version {version}, this program reads "
                    f"{SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]}: fetch it again with this version of farm"
                )
            self.layers = layers_of(self.manifest["layers"])
        except FileNotFoundError:
            lack = f"has no {MANIFEST}" if self.path.exists() else "does not exist"
            raise UsageError(f"{self.path} is no bundle, it {lack}: farm fetch writes one") from None
        except (BadZipFile, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path} is no bundle ({error}): farm fetch writes one") from None

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(self.manifest["archs"])

    @property
    def missing(self) -> Sequence[Mapping[str, Any]]:
        """Layers that a part of a bundle lacks: name, operator, archs and reason."""
        return tuple(self.manifest.get("missing", ()))

    @property
    def has_network(self) -> bool:
        return "network" in self.manifest

    @property
    def network(self) -> Network:
        """The model around the layers. Raises UsageError where the bundle has none, or one that is damaged."""
        if missing := self.missing:
            raise UsageError(
                f"{self.path} is a part and holds no network: {missing[0]['name']} was not compiled "
                f"({missing[0]['reason']}): run farm retry, then farm fetch"
            )
        if not self.has_network:
            raise UsageError(
                f"{self.path} holds layers and no network: its job is older than this version of farm; compile it again"
            )
        from codegen.frontend.onnx.export.network import read_network

        return read_network(self.read(NETWORK, self.manifest["network"]["sha256"]), self.constants)

    def cubin(self, cubin: Cubin) -> bytes:
        """Its bytes, which cuModuleLoadData takes. Raises UsageError if they are missing or damaged."""
        return self.read(cubin.path, cubin.sha256)

    def read(self, name: str, sha256: str) -> bytes:
        """A file whose digest is known. Raises UsageError if it is missing or damaged."""
        try:
            data = self._bytes(name)
        except FileNotFoundError:
            raise UsageError(f"{self.path}: {name} is missing: fetch the bundle again") from None
        except BadZipFile as error:
            raise UsageError(f"{self.path}: {name} is damaged ({error}): fetch it again") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UsageError(f"{self.path}: {name} is damaged, its digest is not the manifest's: fetch it again")
        return data

    def files(self) -> dict[str, str]:
        """Digests by name, of every file but the manifest."""
        found = {each.path: each.sha256 for layer in self.layers.values() for each in (*layer.cubins, *layer.ptx)}
        if self.has_network:
            found[NETWORK] = self.manifest["network"]["sha256"]
        return found | self._runtime_digests()

    @property
    def file_bytes(self) -> int:
        """Size of all its files that are there, the manifest too; as they are unpacked."""
        names = (MANIFEST, *self.files())
        if self._folder:
            return sum(path.stat().st_size for name in names if (path := self.path / name).is_file())
        return sum(each.file_size for each in self._archive.infolist() if each.filename in names)

    def damage(self) -> Sequence[str]:
        """Every file that is missing or damaged, in words; the manifest too, if it was written with its digest."""
        found = []
        text = self._bytes(MANIFEST)
        if "sha256" in self.manifest and not is_whole(text, self.manifest["sha256"]):
            found.append(f"{self.path}: {MANIFEST} is damaged, its digest is not the one in it: fetch it again")
        for name, sha256 in self.files().items():
            try:
                self.read(name, sha256)
            except UsageError as error:
                found.append(str(error))
        return found

    @property
    def plan(self) -> str:
        """How the network runs without a framework. Raises UsageError where the bundle does not say, or in other words
        than this program's."""
        text = self._runtime_file(PLAN)
        if not text:
            raise UsageError(
                f"{self.path} does not say how its network runs: it is a part, or older than this version of farm; "
                "fetch it again"
            )
        plan = text.decode()
        if plan.partition("\n")[0] != PLAN_FORMAT:
            raise UsageError(
                f"{self.path}: its {PLAN} is of another version than this program reads: fetch the bundle again with "
                "this version of farm"
            )
        return plan

    @property
    def constants(self) -> bytes:
        """What the plan's steps read beside the network's input."""
        return self._runtime_file(CONSTANTS)

    @property
    def rest(self) -> bytes:
        """The PTX of the kernels beside the layers; empty where the plan needs none."""
        return self._runtime_file(REST)

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
        """Open as long as the bundle: its directory is read once, not for each of hundreds of files."""
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
