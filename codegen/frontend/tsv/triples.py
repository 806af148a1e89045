"""One file of triples: `row column value` a line, counted from 1, with tabs or spaces between them."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path

import numpy as np

from codegen.errors import CheckpointError
from codegen.ir.checkpoint import FloatArray
from codegen.model_zoo.radixnet import SparseMatrix


def read_text(path: Path) -> bytes:
    """A file as it is. Raises CheckpointError, which names it."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file: check the path") from error
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read ({error.strerror}): check its permissions") from error


def read_triples(path: Path, rows: int, columns: int) -> SparseMatrix:
    """The matrix of a file, rows as sources and columns as targets. Raises CheckpointError, which names the file."""
    text = BytesIO(read_text(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file, which is told below
            table = np.loadtxt(text, dtype=np.float64, ndmin=2, comments=None, encoding="ascii")
    except ValueError as error:  # also of bytes that are no text
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: it has no triples 'row column value' ({reason}): write it again") from error
    if table.size == 0:
        raise CheckpointError(f"{path}: it is empty: write it again, a triple 'row column value' a line")
    if table.shape[1] != 3:
        raise CheckpointError(f"{path}: its lines have {table.shape[1]} numbers, not 3: write 'row column value'")
    places = table[:, :2]
    wrong = (places != np.floor(places)) | (places < 1) | (places > (rows, columns))
    if wrong.any():
        line = int(np.flatnonzero(wrong.any(axis=1))[0])
        raise CheckpointError(
            f"{path}: line {line + 1} has the place {places[line, 0]:g}, {places[line, 1]:g} in a matrix of "
            f"{rows} x {columns}, counted from 1: say how many neurons the network has, or write the file again"
        )
    sources, targets = places.astype(np.int64).T - 1
    flat = sources * columns + targets
    _, first, counts = np.unique(flat, return_index=True, return_counts=True)
    if (counts > 1).any():
        at = int(first[counts > 1][0])
        raise CheckpointError(
            f"{path}: the place {sources[at] + 1}, {targets[at] + 1} comes more than once: write each once"
        )
    with np.errstate(over="ignore"):
        values = table[:, 2].astype(np.float32)
    if not np.isfinite(values).all():
        line = int(np.flatnonzero(~np.isfinite(values))[0])
        raise CheckpointError(f"{path}: line {line + 1} has the value {table[line, 2]:g}, which is no finite float32")
    return SparseMatrix(sources, targets, values + np.float32(0))  # -0.0 is 0.0


def write_triples(path: Path, matrix: SparseMatrix) -> None:
    """Writes the file; values are read back as they were."""
    order = np.lexsort((matrix.targets, matrix.sources))
    rows = zip(
        (matrix.sources[order] + 1).tolist(),
        (matrix.targets[order] + 1).tolist(),
        matrix.values[order].tolist(),
        strict=True,
    )
    path.write_text("".join(f"{row}\t{column}\t{value:.9g}\n" for row, column, value in rows), encoding="ascii")


def read_rows(path: Path, count: int, neurons: int) -> FloatArray:
    """The inputs of a network [count, neurons], most of which are zero. Raises CheckpointError."""
    matrix = read_triples(path, count, neurons)
    dense = np.zeros((count, neurons), dtype=np.float32)
    dense[matrix.sources, matrix.targets] = matrix.values
    return dense


def write_rows(path: Path, rows: FloatArray) -> None:
    """Writes inputs [count, neurons]."""
    sources, targets = np.nonzero(rows)
    write_triples(path, SparseMatrix(sources, targets, rows[sources, targets]))
