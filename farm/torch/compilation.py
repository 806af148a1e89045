"""Compile a PyTorch model, or the checkpoints of a pruning sweep, with one call."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from codegen.ir.checkpoint import Checkpoint
from codegen.sass.qualification import AssemblerChoice
from farm.api import Farm
from farm.bundle.writer import check_target, safe_names
from farm.errors import JobFailedError, UsageError
from farm.jobs.model import BuildOptions, Job, Status, batches_of
from farm.torch.export import Example, Exported, State, inputs_of
from farm.torch.module import load


@dataclass(frozen=True)
class Compiled:
    """A compiled model: a bundle, which a GPU can load as a module."""

    job: str
    """Id of the job, for `farm inspect`, `farm verify` and others."""
    name: str
    bundle: Path
    """The bundle's folder, or its `.farm` file."""

    def module(self, device: torch.device | str = "cuda") -> nn.Module:
        """The network on a GPU, as `farm.torch.load` gives it. Raises UsageError and DeviceError."""
        return load(self.bundle, device)


@dataclass(frozen=True)
class Sweep:
    """The compiled checkpoints of a sweep."""

    submission: str
    """Id of the submission, for `farm report --sweep`."""
    checkpoints: tuple[Compiled, ...]
    """In the order of the state_dicts."""


def compile(  # noqa: A001 - named like torch.compile
    model: nn.Module,
    example: Example,
    *,
    archs: str | Sequence[str],
    batch: int | Sequence[int] | None = None,
    output: Path | str = "bundle",
    name: str = "",
    assembler: AssemblerChoice = "auto",
    state_dict: State | None = None,
    farm: Farm | None = None,
) -> Compiled:
    """Compile a pruned model into a bundle; needs no GPU.

    A copy of the model is exported in eval mode, with the masks of torch.nn.utils.prune made permanent. `example` is
    the model's input or a sequence of its inputs, `archs` are architectures or GPUs. `batch` is the batch size to be
    fast at, or several, by default the example's. `state_dict` replaces the model's weights and may have masks too.
    `name` is by default the model's class, `farm` the one that `farm config show` prints. Warns as `farm compile` does.
    Raises UsageError, and the errors of `Farm.compile` and `Farm.fetch`.
    """
    exported = Exported(model, example)
    name, folder = safe_names([name or exported.name])[0], Path(output)
    check_target(folder, name)
    with _opened(farm) as opened:
        checkpoints = _checkpoints(opened, exported, [(name, state_dict)])
        _, [job] = _run(opened, checkpoints, _options(example, archs, batch, assembler))
        opened.fetch(job.id, folder)
    return Compiled(job.id, name, folder)


def sweep(
    model: nn.Module,
    state_dicts: Iterable[State],
    example: Example,
    *,
    archs: str | Sequence[str],
    batch: int | Sequence[int] | None = None,
    output: Path | str = "sweep",
    name: str = "",
    assembler: AssemblerChoice = "auto",
    farm: Farm | None = None,
) -> Sweep:
    """Compile many checkpoints of one model as one submission; the model is exported once.

    The bundle of the first checkpoint of a class Net is `sweep/Net-00`. `state_dicts` may be a generator: one
    checkpoint is in memory at a time. The other arguments are those of `compile`. Raises JobFailedError if a checkpoint
    failed, once the others' bundles are written.
    """
    exported = Exported(model, example)
    [name] = safe_names([name or exported.name])

    def named() -> Iterator[tuple[str, State]]:
        for number, state in enumerate(state_dicts):
            check_target(Path(output, f"{name}-{number:02}"), f"{name}-{number:02}")
            yield f"{name}-{number:02}", state

    with _opened(farm) as opened:
        checkpoints = _checkpoints(opened, exported, named())
        submission, jobs = _run(opened, checkpoints, _options(example, archs, batch, assembler))
        for job in jobs:
            if job.status is Status.SUCCEEDED:
                opened.fetch(job.id, Path(output, job.name))
    failed = [job for job in jobs if job.status is not Status.SUCCEEDED]
    if failed:
        raise JobFailedError(
            f"{len(failed)} of {len(jobs)} checkpoints were not compiled, first {failed[0].name}: {failed[0].reason}. "
            f"farm status --submission {submission} lists them."
        )
    return Sweep(submission, tuple(Compiled(job.id, job.name, Path(output, job.name)) for job in jobs))


def _opened(farm: Farm | None) -> AbstractContextManager[Farm]:
    return Farm.open() if farm is None else nullcontext(farm)


def _options(
    example: Example, archs: str | Sequence[str], batch: int | Sequence[int] | None, assembler: AssemblerChoice
) -> BuildOptions:
    names = (archs,) if isinstance(archs, str) else tuple(archs)
    first = inputs_of(example)[0]
    of_example = len(first) if first.ndim else 1
    return BuildOptions(names, batches_of(of_example if batch is None else batch), assembler=assembler)


def _checkpoints(farm: Farm, exported: Exported, states: Iterable[tuple[str, State | None]]) -> Iterator[Checkpoint]:
    """Checkpoints of named state_dicts. Raises UsageError, and CheckpointError if nothing compiles."""
    for name, state in states:
        with TemporaryDirectory(prefix="farm-") as folder:
            path = Path(folder, f"{name}.onnx")
            exported.write(path, state, name)
            yield farm.read(path)


def _run(farm: Farm, checkpoints: Iterable[Checkpoint], options: BuildOptions) -> tuple[str, list[Job]]:
    """Submits and runs checkpoints; returns the submission's id and their jobs. Raises UsageError if there are none."""
    submission = farm.submit(checkpoints, options)
    if not submission.jobs:
        raise UsageError("no state_dict to compile: give one or more")
    for warning in submission.warnings:
        warnings.warn(warning, stacklevel=3)
    return submission.id, farm.run([job.id for job in submission.jobs])
