"""A finished job, its cubins, and the bundle that is written of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from jsonschema import Draft202012Validator, FormatChecker

from codegen.ir.launch import Launch
from codegen.ir.layer_spec import Conv2d, SkippedLayer
from codegen.ir.tiling import Part, Tiling
from codegen.kernels import launch_of
from farm.bundle.members import MANIFEST
from farm.bundle.writer import write_bundle
from farm.jobs.model import Build, BuildOptions, BuildResult, Job, Outcome, Status
from farm.store.contract import blob_digest
from farm.store.memory import MemoryStore
from tests.samples import LAUNCH

TOOLS = {"nvcc": "13.0.88", "ptxas": "13.0.88"}
JOB = Job(
    id="0123456789ab",
    submission="s",
    submitter="ada",
    name="net",
    model="/somewhere/private/net.onnx",
    model_digest="cd" * 32,
    options=BuildOptions(("sm_90", "sm_80")),
    status=Status.SUCCEEDED,
    reason="",
    stage="",
    done=4,
    total=4,
    hits=0,
    tries=1,
    submitted_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    skipped=(SkippedLayer("fc", "Gemm", "fully connected layers are not compiled"),),
)


SPEC = Conv2d(3, 8, 9, 4, 3, 3, stride=(1, 2), padding=(1, 0, 1, 2))
TILING = Tiling("conv2d", 8, 4, 1, 4, 3, 2)
LINEAR_TILING = replace(TILING, kernel="linear", tile_height=1)
WHOLE = (Part(0, 1),)


def build(number: int, name: str) -> Build:
    return Build(number, JOB.id, number, name, "x", f"{name}.out", SPEC, TILING, "ab" * 32, 11, "cd" * 32, WHOLE)


def cubin(number: int, arch: str, part: int = 0) -> bytes:
    return f"cubin {number} {arch} {part}".encode()


def result(number: int, arch: str, part: int = 0, launch: Launch = LAUNCH) -> BuildResult:
    data = cubin(number, arch, part)
    key = blob_digest(b"key" + data)
    return BuildResult(
        number,
        arch,
        part,
        Outcome.BUILT,
        key,
        key,
        blob_digest(data),
        len(data),
        "ef" * 32,
        11,
        89,
        32,
        0,
        launch=launch,
    )


def stored_cubins() -> MemoryStore:
    store = MemoryStore()
    for number in range(9):
        for arch in ("sm_80", "sm_90"):
            for part in range(3):
                store.put(cubin(number, arch, part))
    return store


def write(directory: Path, store: MemoryStore, *names: str) -> dict[str, Any]:
    return write_layers(directory, store, *[build(i, name) for i, name in enumerate(names or ("conv1", "conv2"))])


def write_layers(directory: Path, store: MemoryStore, *builds: Build) -> dict[str, Any]:
    results = [
        result(each.id, arch, part, launch_of(each.spec, each.tiling, each.parts[part]))
        for each in builds
        for arch in ("sm_80", "sm_90")
        for part in reversed(range(len(each.parts)))
    ]
    manifest = json.loads(write_bundle(directory, JOB, builds, results, TOOLS, store).read_text())
    assert isinstance(manifest, dict)
    return manifest


def manifest_of(bundle: Path) -> dict[str, Any]:
    """The manifest of a bundle in either form, as JSON."""
    text = (bundle / MANIFEST).read_bytes() if bundle.is_dir() else ZipFile(bundle).read(MANIFEST)
    manifest = json.loads(text)
    assert isinstance(manifest, dict)
    return manifest


def validator() -> Draft202012Validator:
    schema = json.loads(files("farm.bundle").joinpath("manifest.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
