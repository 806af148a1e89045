"""A whole network as a bundle whose cubins say only which arguments they take, for a driver that is played."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from codegen.frontend.onnx.reader import read_checkpoint
from codegen.ir.checkpoint import Checkpoint
from codegen.kernels import launch_of
from farm.bundle.writer import write_bundle
from farm.jobs.model import BuildOptions, BuildResult, Outcome
from farm.jobs.submission import new_job
from farm.runtime.plan_files import LETTERS
from farm.store.contract import blob_digest
from farm.store.memory import MemoryStore
from tests.bundle_samples import JOB, TOOLS

ARCHS = ("sm_80", "sm_90")


def played_bundle(
    path: Path,
    model: Path,
    checkpoint: Checkpoint | None = None,
    code: bytes = b"",
    shared_bytes: int | None = None,
    batches: tuple[int, ...] = (64,),
) -> Path:
    """A bundle of a model's file; returns its folder, or its file where the name ends in .farm.

    With `code`, cubins begin with that; `shared_bytes` replaces the shared memory that each launch's tiling needs.
    """
    store = MemoryStore()
    options = BuildOptions(ARCHS, batches, tuning=False)
    made = new_job(checkpoint or read_checkpoint(model), options, namespace="", name="net", store=store)
    builds = [replace(build, id=i) for i, build in enumerate(made.builds)]
    results = []
    for build in builds:
        for arch in build.archs(options):
            for number, part in enumerate(build.parts_of(arch)):
                launch = launch_of(build.spec, build.tiling, part)
                if shared_bytes is not None:
                    launch = replace(launch, shared_bytes=shared_bytes)
                letters = "".join(LETTERS[name] for name in launch.arguments)
                said = f"fake {launch.kernel} {letters} {build.layer} {arch} {number}".encode()
                data = code + said
                digest = store.put(data)
                key = blob_digest(data)
                results.append(
                    BuildResult(
                        build.id, arch, number, Outcome.BUILT, key, key, digest, len(data), "ef" * 32, launch=launch
                    )
                )
    job = replace(JOB, options=options, network=made.network, skipped=made.skipped)
    write_bundle(path, job, builds, results, TOOLS, store)
    return path
