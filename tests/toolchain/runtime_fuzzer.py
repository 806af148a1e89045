"""`make fuzz-runtime`: mutants of bundles, which the C runtime opens and runs under gcc's sanitizers.

A failure leaves its mutant in the printed folder. `python -m tests.toolchain.runtime_fuzzer --help` has the options.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import find_toolchain
from farm.bundle.reader import GLUE, PLAN
from farm.runtime.glue_kernels import glue_entry
from farm.runtime.plan_text import with_end
from tests.toolchain.played_bundle import played_bundle
from tests.toolchain.played_runtimes import HERE, C
from tests.toolchain.sample_bundles import sample_models
from tests.unit.onnx_models import info, model, node, tensor, values

FLAGS = (
    *("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
)
MOST_ALLOCATED_MB = 65
"""Largest allocation, with bundles that are much smaller."""
MOST_RESIDENT_MB = 1024
PTX = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry conv2d() { ret; }\n"


@dataclass(frozen=True)
class Target:
    """A bundle and what is mutated of it."""

    bundle: Path
    member: str
    """The file of a folder; empty for an archive."""


@dataclass(frozen=True)
class Tally:
    """Outcomes of the mutants in a clean run."""

    mutants: int
    opened: int
    """Mutants that the loader accepted."""
    ran: int


def build_fuzzer(folder: Path) -> Path:
    """Compiles the program into a folder."""
    program = folder / "runtime_fuzzer"
    sources = [HERE / "runtime_fuzzer.c", HERE / "stub_libcuda.c", *sorted(C.glob("*.c"))]
    subprocess.run(["gcc", *FLAGS, f"-I{C}", *sources, "-o", program], check=True)
    return program


def make_targets(folder: Path) -> Mapping[str, Target]:
    """A target of each kind, by its name. All are small, so that thousands are opened each second."""
    (gates, gates_model), (constants, constants_model) = sample_models(folder)
    softmax = _model(folder / "softmax.onnx", node("Conv", "x w", "a", "conv"), node("Softmax", "a", "y", axis=1))
    conv = _model(folder / "conv.onnx", node("Conv", "x w", "y", "conv"))
    cubin = assemble(PTX, "sm_80", find_toolchain()).data
    coded = played_bundle(folder / "coded", conv, code=cubin)
    return {
        "plan": Target(_small(played_bundle(gates / "bundle", gates_model, batches=(1, 64))), PLAN),
        "plan-with-constants": Target(_small(played_bundle(constants / "bundle", constants_model)), PLAN),
        "archive": Target(played_bundle(folder / "archive.farm", conv), ""),
        "cubin": Target(coded, str(next(coded.glob("*/sm_90.cubin")).relative_to(coded))),
        "glue": Target(_small(played_bundle(folder / "glue", softmax)), GLUE),
    }


def _small(bundle: Path) -> Path:
    """Leaves in glue.ptx only the kernels that the plan launches."""
    lines = (bundle / PLAN).read_text().splitlines()[1:-1]
    kernels = sorted({line.split(" ")[1] for line in lines if line.startswith("launch ")})
    glue = b"".join(map(glue_entry, kernels))
    (bundle / GLUE).write_bytes(glue)
    described = f"file {len(glue)} {hashlib.sha256(glue).hexdigest()} {GLUE}"
    (bundle / PLAN).write_bytes(with_end([described if line.endswith(f" {GLUE}") else line for line in lines]))
    return bundle


def _model(path: Path, *nodes: onnx.NodeProto) -> Path:
    path.write_bytes(
        model(nodes, [tensor("w", values(2, 3, 1, 1))], inputs=[info("x", ("N", 3, 2, 2))]).SerializeToString()
    )
    return path


def fuzz(program: Path, target: Target, mutants: int, seed: int) -> Tally:
    """Opens and runs mutants. Raises AssertionError with what a sanitizer says."""
    # Its strstr reads the whole text each time.
    asan = f"intercept_strstr=0:max_allocation_size_mb={MOST_ALLOCATED_MB}:hard_rss_limit_mb={MOST_RESIDENT_MB}"
    environment = {**os.environ, "STUB_LOG": os.devnull, "ASAN_OPTIONS": asan, "UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [program, target.bundle, target.member, str(mutants), str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"
    return Tally(*map(int, done.stdout.split()))


def main() -> int:
    """1 if a mutant of a kind does harm; the other kinds are played all the same."""
    parser = argparse.ArgumentParser(prog="python -m tests.toolchain.runtime_fuzzer", description=__doc__)
    parser.add_argument("--mutants", type=int, default=100_000, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="draws the same mutants again")
    parser.add_argument("kind", nargs="*", help="all of them if none is named")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fuzz-runtime-"))
    program, targets = build_fuzzer(folder), make_targets(folder)
    if unknown := set(options.kind) - set(targets):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}: there are {', '.join(targets)}")
    failed = 0
    for kind in options.kind or targets:
        start = time.monotonic()
        try:
            tally = fuzz(program, targets[kind], options.mutants, options.seed)
        except AssertionError as error:
            failed += 1
            print(f"FAILED: {kind}: {error}", flush=True)
            continue
        seconds = time.monotonic() - start
        print(
            f"{kind:20} {tally.mutants:,} mutants, {tally.opened:,} opened, {tally.ran:,} ran, {seconds:.0f} s",
            flush=True,
        )
    print(f"python -m tests.toolchain.runtime_fuzzer --seed {options.seed} --mutants {options.mutants}")
    if not failed:
        shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
