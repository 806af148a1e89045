"""A bundle's answers against onnxruntime's: the images are the same for both, and what differs is counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codegen.model_zoo import lenet5, write_network
from tests.benchmarks.answers import AT_ONCE, compared, images, onnxruntime_outputs


def test_images_are_the_same_whoever_asks() -> None:
    first, second = (np.concatenate(list(images((1, 4, 4), 2 * AT_ONCE + 7))) for _ in range(2))
    assert first.shape == (2 * AT_ONCE + 7, 1, 4, 4)
    np.testing.assert_array_equal(first, second)


def test_another_answer_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    write_network(tmp_path / "net.onnx", lenet5(0.9, 0))
    expected = onnxruntime_outputs(tmp_path / "net.onnx", 12, threads=1)
    same = compared(expected, expected)
    assert (same["images"], same["equal"], same["largest_difference"]) == (12, 12, 0)
    found = expected.copy()
    found[3] = -found[3]
    assert compared(found, expected)["equal"] == 11
    assert compared(found, expected)["relative_difference"] > 0.1
