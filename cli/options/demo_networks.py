"""Networks that ship, named where a model's file could be."""

from __future__ import annotations

from pathlib import Path

from farm.errors import UsageError

PRECISIONS = ("float32", "float16")
SPARSITY = 0.9
"""Share of zeros, unless another is asked for."""


def file_of(name: str, data_type: str, sparsity: float, seed: int, folder: Path) -> Path:
    """The file that is named, or one made in this folder of the network. Raises UsageError for neither."""
    from codegen.model_zoo import NETWORKS, in_float16, write_network

    path = Path(name)
    if path.suffix == ".onnx" or path.exists():
        return path
    known = {each.replace("_", ""): each for each in NETWORKS}
    shipped = known.get(name.replace("_", "").replace("-", "").lower())
    if shipped is None:
        raise UsageError(
            f"{name} is neither an ONNX file nor a network that ships: give the path of a file, or one of "
            f"{', '.join(NETWORKS)}"
        )
    made = NETWORKS[shipped](sparsity, seed)
    path = folder / f"{shipped}.onnx"
    write_network(path, in_float16(made) if data_type == "float16" else made)
    return path
