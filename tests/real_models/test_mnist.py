"""A network trained on 50,000 handwritten digits, pruned in steps with fine-tuning, and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch: make torch")

from cli.main import run
from tests.digits.demonstration import demonstrate
from tests.real_models.mnist import load_mnist, mnist_network

SPARSITY = 0.9
IMAGES = 2_000
"""Images taken of the 10,000 for tests: the emulator reads 25 in a second."""


def test_a_network_fine_tuned_after_pruning_reads_digits_in_the_farm_as_in_onnxruntime(tmp_path: Path) -> None:
    answers = demonstrate(
        tmp_path,
        load_mnist(),
        mnist_network,
        archs=["sm_90"],
        epochs=2,
        fine_epochs=1,
        images=IMAGES,
        kept=(SPARSITY,),
        exporters=("dynamo",),
    )
    [answer] = answers
    assert (answer.images, answer.differing) == (IMAGES, 0)
    assert answer.accuracy == pytest.approx(answer.accuracy_pruned, abs=5e-3)
    assert answer.accuracy > 0.98
    assert answer.accuracy > answer.accuracy_before - 0.005
    assert run(["verify", "--network"]) == 0
