"""The writer of bundles: a job's cubins, and a manifest with all that a program needs to launch them."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

from codegen.frontend.onnx.export.residual_graph import Tensor, interface_of
from codegen.ir.launch import Launch
from codegen.ir.layer_spec import LayerSpec, Linear, SkippedLayer
from farm.bundle.manifest import SCHEMA_VERSION, read_layers, with_digest
from farm.bundle.members import MANIFEST, open_members
from farm.bundle.provenance import sealed, statement_of
from farm.bundle.ptx import KernelPtx
from farm.bundle.reader import CONSTANTS, GLUE, NETWORK, PLAN, PROVENANCE, Bundle, layers_of
from farm.config.build_id import program_digest
from farm.errors import BlobLostError, BundleError, UsageError
from farm.jobs.completeness import MissingLayer
from farm.jobs.model import Build, BuildOptions, BuildResult, Job
from farm.runtime.plan_files import network_files
from farm.signing import Keyring
from farm.store.contract import Store, blob_digest
from farm.worker.cache_lookup import read_cubin

ARCHIVE_SUFFIX = ".farm"
"""Suffix of a bundle in one file: an uncompressed zip archive."""


def write_bundle(
    directory: Path,
    job: Job,
    builds: Sequence[Build],
    results: Sequence[BuildResult],
    toolchain: Mapping[str, str],
    store: Store,
    missing: Sequence[MissingLayer] = (),
    ptx: Sequence[KernelPtx] = (),
    keys: Keyring | None = None,
    verification: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Writes a job's bundle and gives the path of its manifest, or of the archive.

    Each cubin is `<layer>/<arch>.cubin`, or `<layer>/<arch>.batch8.part1.cubin` and so on for a layer with several
    tilings by batch size, in several parts. The model's network around them is `network.onnx`, if the job has it. If
    the name of `directory` ends in `.farm`, the bundle is one file: an archive of the same files.

    `toolchain` has the version of each tool. With `missing` layers the bundle is partial: its manifest lists them, and
    it has no network, which would need them. Each of `ptx` is written as `<layer>/compute_80.ptx` and listed in the
    launch of the cubins that were made from it. With `keys` the statement about the bundle is signed; `verification` is
    its part about the verified kernels. An existing bundle of a network of that name is replaced. Raises UsageError if
    the directory holds anything else or cannot be written, BlobLostError if the store has lost a cubin.
    """
    check_target(directory, job.name)
    of_build: dict[int, list[BuildResult]] = {build.id: [] for build in builds}
    for result in sorted(results, key=lambda each: job.options.archs.index(each.arch)):
        of_build[result.build].append(result)
    files: dict[str, bytes] = {}
    layers = []
    of_layer = [list(same) for _, same in groupby(builds, key=lambda build: build.position)]
    for same, folder in zip(of_layer, safe_names([same[0].layer for same in of_layer]), strict=True):
        entry = _layer(job, same, of_build, folder)
        layers.append(entry)
        for build in same:
            for result in of_build[build.id]:
                name = build.cubin_name(result.arch, result.part)
                files[_path(build, result, folder)] = read_cubin(store, result.cubin, name)
            for kernel in ptx:
                if kernel.result.build == build.id:
                    path = _ptx_path(build, kernel, folder)
                    files[path] = kernel.text
                    _add_ptx(entry, kernel, path, _path(build, kernel.result, folder))
    manifest = _manifest(job, layers, toolchain, missing)
    if job.network is not None and not missing:
        found = network_files(layers_of(read_layers(layers)), _network(store, job, job.network))
        files |= {NETWORK: found.network, **found.others}
        manifest |= {"network": _network_entry(found.network), "runtime": found.entry}
    digests = {name: blob_digest(data) for name, data in files.items()}
    statement = statement_of(manifest, digests, program_digest(), verification)
    files[PROVENANCE] = statement if keys is None else sealed(statement, keys)
    manifest["provenance"] = _file_entry(PROVENANCE, files[PROVENANCE])
    files[MANIFEST] = with_digest(manifest)
    if directory.suffix == ARCHIVE_SUFFIX:
        _write_archive(directory, files)
        return directory
    _replace(directory, files)
    return directory / MANIFEST


def bundle_targets(networks: Sequence[tuple[str, str]], output: Path) -> list[Path]:
    """The place of each network's bundle: `output` itself for one, folders in it with their names for several.

    `networks`: name and digest of each; the digest distinguishes equal names. Raises UsageError if `output` is one
    bundle and there are several.
    """
    if len(networks) == 1:
        return [output]
    if output.suffix == ARCHIVE_SUFFIX or (output / MANIFEST).exists():
        raise UsageError(f"{output} is one bundle, and there are {len(networks)} to write: name another folder")
    names = [name for name, _ in networks]
    own = [name if names.count(name) == 1 else f"{name}-{digest[:8]}" for name, digest in networks]
    return [output / name for name in safe_names(own)]


def check_target(path: Path, name: str) -> None:
    """Raises UsageError if the bundle of the network `name` cannot be written there, or would replace another's."""
    path = path.absolute()
    if path.suffix != ARCHIVE_SUFFIX:
        _bundle_files(path)
    elif path.is_dir():
        raise UsageError(f"{path} is a folder: a bundle whose name ends in {ARCHIVE_SUFFIX} is one file")
    if path.exists():
        try:
            other = Bundle(path).manifest.job.name
        except BundleError:  # damaged, or of another version: fetching it again repairs it
            other = name
        if other != name:
            raise UsageError(f"{path} is the bundle of {other}: name another one, or remove it first")
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() and there != path:
        raise UsageError(f"{there} is a file: name another directory")
    if not os.access(there if there.is_dir() else there.parent, os.W_OK | os.X_OK):
        raise UsageError(f"{there} cannot be written: check its permissions, or name another directory")


def _path(build: Build, result: BuildResult, folder: str) -> str:
    """Path of a cubin within the bundle."""
    return f"{folder}/{safe_names([result.arch])[0]}{_suffix(build, result)}.cubin"


def _ptx_path(build: Build, kernel: KernelPtx, folder: str) -> str:
    return f"{folder}/{kernel.virtual_arch}{_suffix(build, kernel.result)}.ptx"


def _suffix(build: Build, result: BuildResult) -> str:
    """The smallest batch size of a kernel where there are several, and its part, counted from 1."""
    own = build.own_batches(result.arch)
    part = f".part{result.part + 1}" if len(build.parts_of(result.arch)) > 1 else ""
    return f".batch{own[0]}{part}" if own else part


def _add_ptx(layer: dict[str, Any], kernel: KernelPtx, path: str, cubin_path: str) -> None:
    """Lists a PTX file in the launch of the cubins that were made from it."""
    result = kernel.result
    for launch in layer["launches"]:
        if launch["cubins"].get(result.arch, {}).get("path") == cubin_path:
            digest, count = blob_digest(kernel.text), len(kernel.text)
            launch["ptx"] = {"path": path, "sha256": digest, "bytes": count, "arch": kernel.virtual_arch}


def _network(store: Store, job: Job, digest: str) -> bytes:
    data = store.get(digest)
    if data is None:
        raise BlobLostError(
            f"job {job.id}: {store.describe()} has lost the network around the layers: run farm compile again"
        )
    return data


def _network_entry(network: bytes) -> dict[str, Any]:
    inputs, outputs = interface_of(network)

    def shown(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
        return [{"name": each.name, "dtype": each.dtype, "shape": list(each.shape)} for each in tensors]

    return {
        **_file_entry(NETWORK, network),
        "inputs": shown(inputs),
        "outputs": shown(outputs),
    }


def _file_entry(name: str, data: bytes) -> dict[str, Any]:
    return {"path": name, "sha256": blob_digest(data), "bytes": len(data)}


def _manifest(
    job: Job, layers: list[dict[str, Any]], toolchain: Mapping[str, str], missing: Sequence[MissingLayer]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "job": {"id": job.id, "name": job.name, "submitted_at": job.submitted_at.isoformat()},
        "model": {"file": Path(job.model).name, "sha256": job.model_digest},
        "archs": list(job.options.archs),
        "batches": list(job.options.batches),
        "toolchain": dict(toolchain),
        "layers": layers,
        "skipped": [_skipped_entry(each) for each in job.skipped],
        **({"missing": [{**asdict(each), "archs": list(each.archs)} for each in missing]} if missing else {}),
    }


def _skipped_entry(layer: SkippedLayer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "operator": layer.operator,
        "reason": layer.reason,
        "weights": layer.weights,
        "multiply_adds": layer.multiply_adds,
    }


def _layer(
    job: Job, builds: Sequence[Build], results: Mapping[int, Sequence[BuildResult]], folder: str
) -> dict[str, Any]:
    """The manifest's entry of a layer. Its builds differ only in tiling, parts and architectures."""
    build = builds[0]
    spec = build.spec
    tensors = {
        "input": _tensor(build.input, spec, spec.input_shape),
        "output": _tensor(build.output, spec, spec.output_shape),
    }
    if build.residual:
        tensors["residual"] = _tensor(build.residual, spec, spec.output_shape)
    if build.gate:
        tensors["gate"] = _tensor(build.gate, spec, (spec.input_shape[0], 1, 1))
    tilings = [entry for each in builds for entry in _tilings(each, job.options)]
    return {
        "name": build.layer,
        "spec": spec.to_json(),
        "folded": list(build.folded),
        "rows_per_image": build.rows,
        "tensors": tensors,
        "weights": {
            "sha256": build.weights,
            "count": spec.weights_count,
            "nonzeros": build.nonzeros,
            "sparsity": round(1 - build.nonzeros / spec.weights_count, 6),
        },
        **({"tiling": build.tiling.to_json()} if len(builds) == 1 else {"tilings": tilings}),
        "launches": [launch for each in builds for launch in _launches(each, results[each.id], folder, job.options)],
    }


def _tilings(build: Build, options: BuildOptions) -> Iterator[dict[str, Any]]:
    """The tiling of a build with its architectures, for each set of batch sizes."""
    served: dict[tuple[int, ...], list[str]] = {}
    for arch in build.archs(options):
        served.setdefault(build.own_batches(arch), []).append(arch)
    for batches, archs in served.items():
        yield {"archs": archs, **({"batches": list(batches)} if batches else {}), "tiling": build.tiling.to_json()}


def _launches(
    build: Build, results: Sequence[BuildResult], folder: str, options: BuildOptions
) -> Iterator[dict[str, Any]]:
    """The launches of a build: one for each part, or several if its architectures are launched differently."""
    for number in range(len(build.parts)):
        cubins: dict[tuple[Launch, int | None], dict[str, Any]] = {}
        for result in results:
            if result.part == number:
                entry = _cubin_entry(result, _path(build, result, folder))
                how = result.known_launch, build.most_rows(result.arch, options)
                cubins.setdefault(how, {})[result.arch] = entry
        for (launch, most_rows), of_arch in cubins.items():
            limits = {"images_limit": launch.images_limit, **({"most_rows": most_rows} if most_rows else {})}
            yield {**launch.to_json(), **limits, "cubins": of_arch}


def _cubin_entry(result: BuildResult, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "sha256": result.cubin,
        "bytes": result.cubin_bytes,
        "optimisation": result.optimisation,
        "assembler": result.assembler,
        **({"evidence": result.evidence} if result.evidence else {}),
        "registers": result.registers,
        "spill_bytes": result.spill_bytes,
        **({"ptx_sha256": result.ptx} if result.ptx else {}),
        "cubin_key": result.cubin_key,
        "template_key": result.template_key,
    }


def _tensor(name: str, spec: LayerSpec, shape: tuple[int, ...]) -> dict[str, Any]:
    """Describes a tensor; in its shape `batch` stands for the number of images, `rows` for the number of rows."""
    layout, first = ("NC", "rows") if isinstance(spec, Linear) else ("NCHW", "batch")
    return {"name": name, "dtype": spec.data_type, "layout": layout, "shape": [first, *shape]}


def safe_names(names: Sequence[str]) -> list[str]:
    """A file name for each name: without separators, not hidden, distinct on any file system."""
    taken = {MANIFEST, NETWORK, PLAN, CONSTANTS, GLUE, PROVENANCE}
    safe = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:100] or "layer"
        candidate, number = stem, 1
        while candidate.lower() in taken:
            number += 1
            candidate = f"{stem}-{number}"
        taken.add(candidate.lower())
        safe.append(candidate)
    return safe


def _replace(directory: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files to a folder beside the directory, then moves them in, the manifest last."""
    directory = directory.absolute()
    fresh = directory.parent / f".{directory.name}-{uuid.uuid4().hex[:8]}"
    try:
        old = _bundle_files(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            for name, data in files.items():
                _write(fresh / name, data)
            if not directory.exists():
                fresh.rename(directory)
                return
            for path in sorted(old, key=lambda path: path.name != MANIFEST):
                path.unlink()
            for path in {path.parent for path in old} - {directory}:
                path.rmdir()
            for entry in sorted(fresh.iterdir(), key=lambda entry: entry.name == MANIFEST):
                entry.rename(directory / entry.name)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror}): name another directory") from None


def _write_archive(path: Path, files: Mapping[str, bytes]) -> None:
    """Writes an archive whose bytes depend on the files alone. Raises UsageError."""
    path = path.absolute()
    fresh = path.parent / f".{path.name}-{uuid.uuid4().hex[:8]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with ZipFile(fresh, "w") as archive:
                for name in sorted(files):
                    archive.writestr(ZipInfo(name), files[name])  # dated 1980, so that equal files give equal bytes
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}): name another file") from None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _bundle_files(directory: Path) -> list[Path]:
    """The files of the bundle in the directory, or none if it is empty. Raises UsageError if it holds anything else."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name another directory")
    files: list[Path] = []
    foreign: list[Path] = []
    for folder, folders, names in os.walk(directory):
        files += [Path(folder, name) for name in names]
        foreign += [Path(folder, name) for name in folders if Path(folder, name).is_symlink()]
    if foreign := sorted([*foreign, *({*files} - {directory / path for path in _listed(directory)})]):
        name = foreign[0].relative_to(directory)
        raise UsageError(f"{directory} holds {name}, which is not part of a bundle: name an empty directory")
    return files


def _listed(directory: Path) -> set[str]:
    """The files of a bundle by its manifest, of any version; nothing if it has no manifest."""
    try:
        content = json.loads(open_members(directory).manifest())
        launches = [launch for layer in content["layers"] for launch in layer["launches"]]
        network = {content["network"]["path"]} if "network" in content else set()
        listed = [file for each in launches for file in (*each["cubins"].values(), each.get("ptx")) if file]
        runtime = {each["path"] for each in content.get("runtime", {"files": ()})["files"]} & {PLAN, CONSTANTS, GLUE}
        return {MANIFEST, PROVENANCE} | runtime | network | {str(file["path"]) for file in listed}
    except (BundleError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()
