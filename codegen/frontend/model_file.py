"""Model files of every supported format, read into a Checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from codegen.errors import CheckpointError
from codegen.frontend.onnx.graph.dimensions import Size
from codegen.frontend.onnx.reader import read_checkpoint
from codegen.frontend.tsv.manifest import is_tsv_network
from codegen.frontend.tsv.network import read_tsv_network
from codegen.ir.checkpoint import Checkpoint


def read_model(
    path: Path | str, input_shapes: Mapping[str, Size] | None = None, input_values: Mapping[str, float] | None = None
) -> Checkpoint:
    """Reads an ONNX file, or a TSV network from its folder or manifest. Raises CheckpointError."""
    if not is_tsv_network(Path(path)):
        return read_checkpoint(path, input_shapes, input_values)
    if input_shapes or input_values:
        raise CheckpointError(f"{path}: a TSV network has one input of fixed shape: leave out --input-shape and value")
    return read_tsv_network(path)
