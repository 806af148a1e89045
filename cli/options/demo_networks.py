"""Demo networks, which can be named in place of a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from farm.errors import UsageError

Precision = Literal["float32", "float16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
SPARSITY = 0.9
"""Default share of zero weights."""


def file_of(name: str, data_type: str, sparsity: float, seed: int, folder: Path) -> Path:
    """The named file, or the demo network of that name written into the folder. Raises UsageError for neither."""
    from codegen.model_zoo import NETWORKS, in_float16, write_network

    path = Path(name)
    if path.suffix == ".onnx" or path.exists():
        return path
    known = {each.replace("_", ""): each for each in NETWORKS}
    shipped = known.get(name.replace("_", "").replace("-", "").lower())
    if shipped is None:
        raise UsageError(
            f"{name} is neither an ONNX file nor a demo network: give the path of a file, or one of "
            f"{', '.join(NETWORKS)}"
        )
    made = NETWORKS[shipped](sparsity, seed)
    path = folder / f"{shipped}.onnx"
    write_network(path, in_float16(made) if data_type == "float16" else made)
    return path
