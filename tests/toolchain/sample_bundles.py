"""Small networks whose plans have every kind of line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.unit.onnx_models import info, model, node, save, squeeze_and_excitation, tensor, values


def sample_models(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Models, each with a folder of its own: with gates and a residual, and with constants."""
    for name in ("gates", "constants"):
        (folder / name).mkdir()
    yield folder / "gates", squeeze_and_excitation(folder / "gates")
    nodes = [node("Conv", "x w", "a", "conv"), node("Add", "a k", "s"), node("Softmax", "s", "y", axis=1)]
    weights = [tensor("w", values(2, 3, 1, 1)), tensor("k", values(2, 2, 2))]
    proto = model(nodes, weights, inputs=[info("x", ("N", 3, 2, 2))])
    yield folder / "constants", save(folder / "constants", proto)
