"""A bundle's answers on a GPU against onnxruntime's, on random images: python -m tests.benchmarks.answers MODEL BUNDLE

python -m tests.benchmarks.answers model.onnx --save expected.npy    # onnxruntime's part, on the CPU alone
python -m tests.benchmarks.answers model.onnx bundle.farm --expected expected.npy
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

IMAGES = 1000
AT_ONCE = 50


def images(shape: tuple[int, ...], count: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """`count` images in batches of AT_ONCE; equal for equal seeds."""
    random = np.random.default_rng(seed)
    for first in range(0, count, AT_ONCE):
        yield random.standard_normal((min(AT_ONCE, count - first), *shape), np.float32)


def onnxruntime_outputs(model: Path, count: int, threads: int = 0) -> NDArray[Any]:
    """[images, classes]; with all cores where no number of threads is given."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    [taken] = session.get_inputs()
    kind = np.float16 if "float16" in taken.type else np.float32
    given = images(tuple(taken.shape[1:]), count)
    return np.concatenate([session.run(None, {taken.name: x.astype(kind)})[0] for x in given])


def bundle_outputs(bundle: Path, count: int) -> NDArray[Any]:
    """[images, classes], by farm.torch."""
    import torch

    from farm.bundle.reader import Bundle
    from farm.torch import load

    network = load(bundle)
    entry = Bundle(bundle).manifest.network
    assert entry is not None
    [taken] = entry.inputs
    given = images(tuple(map(int, filter(None, taken.shape[1:]))), count)
    with torch.inference_mode():
        return np.concatenate([network(torch.from_numpy(x.astype(taken.dtype)).cuda()).cpu().numpy() for x in given])


def compared(found: NDArray[Any], expected: NDArray[Any]) -> dict[str, Any]:
    """Number of images with the same answer, and the distance of the outputs."""
    equal = found.argmax(1) == expected.argmax(1)
    top = np.sort(expected.astype(np.float64), axis=1)[:, -2:]
    difference = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected.astype(np.float64))
    return {
        "images": len(equal),
        "equal": int(equal.sum()),
        "classes_seen": len(set(expected.argmax(1).tolist())),
        "relative_difference": float(difference),
        "largest_difference": float(np.abs(found.astype(np.float64) - expected).max()),
        "smallest_margin": float((top[:, 1] - top[:, 0]).min()),
    }


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--expected", type=Path)
    given = parser.parse_args()
    if given.expected:
        expected = np.load(given.expected)
    else:
        expected = onnxruntime_outputs(given.model, given.images, given.threads)
    if given.save:
        np.save(given.save, expected)
    if given.bundle:
        print(json.dumps(compared(bundle_outputs(given.bundle, len(expected)), expected)))


if __name__ == "__main__":
    main()
