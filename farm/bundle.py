"""What `farm fetch` writes: the cubins of a job, and a manifest with all that a program needs to launch them."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codegen.operators import launch_of
from farm.errors import BlobLostError, UsageError
from farm.jobs import Build, BuildResult, Job
from farm.store.contract import Store

SCHEMA_VERSION = 1
"""Of the manifest; raised whenever a reader of the old one would be misled."""
MANIFEST = "manifest.json"


def write_bundle(
    directory: Path,
    job: Job,
    builds: Sequence[Build],
    results: Sequence[BuildResult],
    toolchain: Mapping[str, str],
    store: Store,
) -> Path:
    """Writes `<layer>/<arch>.cubin` for each cubin and the manifest; gives the manifest's path.

    `toolchain` has the version of each tool. A bundle that lies there already is replaced. Raises UsageError if
    the directory holds anything else or cannot be written, BlobLostError if the store has lost a cubin.
    """
    ordered = sorted(results, key=lambda each: job.options.archs.index(each.arch))
    by_build = {build.id: [each for each in ordered if each.build == build.id] for build in builds}
    folders = dict(zip(by_build, safe_names([build.layer for build in builds]), strict=True))
    paths = {
        (result.build, result.arch): f"{folders[result.build]}/{safe_names([result.arch])[0]}.cubin"
        for result in results
    }
    files = {path: _cubin(store, job, result) for result, path in zip(results, paths.values(), strict=True)}
    layers = [_layer(build, by_build[build.id], paths) for build in builds]
    manifest = _manifest(job, layers, toolchain)
    files[MANIFEST] = (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
    _replace(directory, files)
    return directory / MANIFEST


def _cubin(store: Store, job: Job, result: BuildResult) -> bytes:
    data = store.get(result.cubin) if result.cubin is not None else None
    if data is None:
        raise BlobLostError(
            f"job {job.id}: {store.describe()} has lost a cubin for {result.arch}: run farm compile again"
        )
    return data


def _manifest(job: Job, layers: list[dict[str, Any]], toolchain: Mapping[str, str]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "job": {"id": job.id, "name": job.name, "submitted_at": job.submitted_at.isoformat()},
        "model": {"file": Path(job.model).name, "sha256": job.model_digest},
        "archs": list(job.options.archs),
        "batch": job.options.batch,
        "toolchain": dict(toolchain),
        "layers": layers,
        "skipped": [{"name": each.name, "operator": each.operator, "reason": each.reason} for each in job.skipped],
    }


def _layer(build: Build, results: Sequence[BuildResult], paths: Mapping[tuple[int, str], str]) -> dict[str, Any]:
    launch = launch_of(build.spec, build.tiling)
    cubins = {
        result.arch: {
            "path": paths[result.build, result.arch],
            "sha256": result.cubin,
            "bytes": result.cubin_bytes,
            "registers": result.registers,
            "spill_bytes": result.spill_bytes,
            "ptx_sha256": result.ptx,
            "cubin_key": result.cubin_key,
            "template_key": result.template_key,
        }
        for result in results
    }
    return {
        "name": build.layer,
        "spec": build.spec.to_json(),
        "tensors": {
            "input": _tensor(build.input, build.spec.input_shape),
            "output": _tensor(build.output, build.spec.output_shape),
        },
        "weights": {
            "sha256": build.weights,
            "count": build.spec.weights_count,
            "nonzeros": build.nonzeros,
            "sparsity": round(1 - build.nonzeros / build.spec.weights_count, 6),
        },
        "tiling": build.tiling.to_json(),
        "launches": [{**launch.to_json(), "cubins": cubins}],
    }


def _tensor(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """`batch` in a shape stands for the number of images."""
    return {"name": name, "dtype": "float32", "layout": "NCHW", "shape": ["batch", *shape]}


def safe_names(names: Sequence[str]) -> list[str]:
    """Names for files, one for each: no separators, not hidden, all different on any file system."""
    taken = {MANIFEST}
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
    """Writes the files beside the directory, then moves them in, the manifest last."""
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


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _bundle_files(directory: Path) -> list[Path]:
    """What lies in the directory if that is nothing or a bundle; raises UsageError if it is anything else."""
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name another directory")
    files = [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]
    if foreign := sorted(set(files) - {directory / path for path in _listed(directory / MANIFEST)}):
        raise UsageError(f"{directory} holds {foreign[0].name}, which is not of a bundle: name an empty directory")
    return files


def _listed(manifest: Path) -> set[str]:
    """The files of the bundle, if this is the manifest of one."""
    try:
        content = json.loads(manifest.read_text())
        launches = [launch for layer in content["layers"] for launch in layer["launches"]]
        return {MANIFEST} | {str(cubin["path"]) for launch in launches for cubin in launch["cubins"].values()}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return set()
