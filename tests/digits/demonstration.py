"""The whole way, step by step, as a person would type it, with what comes of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tests.digits.exporting import EXPORTERS, Exporter, export, onnxruntime_labels
from tests.digits.inference import labels
from tests.digits.training import KEPT, Digits, small_network, train_and_prune
from tests.digits.typed import typed

MOST_JOBS = 1000
"""Most jobs of others since these were submitted."""


@dataclass(frozen=True)
class Answers:
    """Accuracy of one file's generated code on the test images."""

    model: Path
    sparsity: float
    exporter: Exporter
    accuracy_before: float
    """Accuracy of the dense network, on all test images."""
    accuracy_pruned: float
    """Accuracy of the pruned network in PyTorch, on all test images."""
    accuracy: float
    """Accuracy of the generated code, on the images that it read."""
    images: int
    differing: int
    """Images that onnxruntime takes for another digit."""


def demonstrate(
    folder: Path,
    digits: Digits,
    network: Callable[[], nn.Sequential] = small_network,
    *,
    archs: Sequence[str],
    epochs: int,
    fine_epochs: int,
    images: int | None,
    kept: Sequence[float] = KEPT,
    exporters: Sequence[Exporter] = EXPORTERS,
) -> list[Answers]:
    """Everything below the folder; the farm is the one that is configured. Raises RuntimeError if a command fails.

    `images` are the first so many of the test images for the generated code to read, all if None.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    print(f"# training on {len(digits.images)} images, then pruning in steps; {len(digits.test_images)} are for tests")
    accuracies, models = {}, {}
    for trained in train_and_prune(network(), digits, epochs=epochs, fine_epochs=fine_epochs, last=max(kept)):
        print(f"sparsity {trained.sparsity:.0%}: {trained.accuracy:.1%} of the test images right", flush=True)
        accuracies[trained.sparsity] = trained.accuracy
        if trained.sparsity in kept:
            for exporter in exporters:
                path = folder / f"digits-{trained.sparsity * 100:.0f}-{exporter}.onnx"
                export(trained.network, digits.test_images[:2], path, exporter)
                models[path] = trained.sparsity, exporter
    typed("compile", *map(str, models), "--arch", ",".join(archs), "-q")
    shown, right = digits.test_images[:images], digits.test_labels[:images].numpy()
    answers = []
    for (path, (sparsity, exporter)), job in zip(models.items(), jobs_of(list(models)), strict=True):
        bundle = folder / path.stem
        typed("fetch", job, "--ptx", "-o", str(bundle))
        found = labels(bundle, shown)
        differing = int((found != onnxruntime_labels(path, shown)).sum())
        accuracy = float((found == right).mean())
        answers.append(
            Answers(path, sparsity, exporter, accuracies[0.0], accuracies[sparsity], accuracy, len(found), differing)
        )
    _print_answers(answers)
    return answers


def _print_answers(answers: Sequence[Answers]) -> None:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "the emulator"
    print(f"\n# the generated code on {where}")
    print(f"{'MODEL':22} {'DENSE':>6} {'PRUNED':>6} {'IMAGES':>6} {'RIGHT':>6}  SAME AS ONNXRUNTIME")
    for each in answers:
        same = "all" if not each.differing else f"{each.images - each.differing} of {each.images}"
        print(
            f"{each.model.stem:22} {each.accuracy_before:>6.1%} {each.accuracy_pruned:>6.1%} {each.images:>6} "
            f"{each.accuracy:>6.1%}  {same}"
        )


def jobs_of(models: Sequence[Path]) -> list[str]:
    """The id of each one's newest job; other people's may have come between."""
    from farm.api import Farm

    with Farm.open() as farm:
        newest_last = {Path(job.model).resolve(): job.id for job in reversed(farm.jobs(limit=MOST_JOBS))}
    return [newest_last[model.resolve()] for model in models]
