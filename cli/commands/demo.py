"""`farm demo`: two pruned networks from random weights to verified machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.compile import compile_models
from cli.commands.fetch import fetch
from cli.commands.status import status
from cli.commands.verify import verify
from cli.output.console import stderr
from farm.errors import UsageError

ARCHS = "sm_80,sm_90,sm_120"
SPARSITY = 0.9


def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder for models and bundles.")] = Path("demo"),
) -> int:
    """Compile two pruned networks for three architectures and verify them on the CPU.

    The networks are LeNet-5 and Cifar10-AlexNet with random weights, pruned to sparsity 0.9.
    """
    from codegen.model_zoo import alexnet_cifar10, lenet5, write_network
    from farm.api import Farm
    from farm.config.settings import load_settings

    models = [folder / "lenet5.onnx", folder / "alexnet.onnx"]
    _say(f"# two networks with random weights, pruned by magnitude to sparsity {SPARSITY}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, make in zip(models, (lenet5, alexnet_cifar10), strict=True):
            write_network(path, make(SPARSITY, seed=0))
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}. Name another folder.") from None
    _say(f"$ farm compile {models[0]} {models[1]} --arch {ARCHS} --batch 64")
    code = compile_models(models=models, arch=[ARCHS])
    _say("$ farm status -n 2")
    status(limit=2)
    with Farm.open(load_settings()) as farm:
        jobs = [job.id[:8] for job in farm.jobs(limit=len(models))]
    for job in reversed(jobs):
        _say(f"$ farm verify {job}")
        code = code or verify(job)
    bundle = folder / "bundle"
    _say(f"$ farm fetch {jobs[0]} -o {bundle}")
    return code or fetch([jobs[0]], bundle)


def _say(text: str) -> None:
    console = stderr()
    console.print()
    console.print(text, style="bold", soft_wrap=True)
