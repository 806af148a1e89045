"""Files of triples: lines of `row column value`, counted from 1 and separated by tabs or spaces."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path

import numpy as np

from codegen.errors import CheckpointError
from codegen.frontend.tsv.files import read_file
from codegen.frontend.tsv.matrix import SparseMatrix
from codegen.ir.checkpoint import FloatArray

MOST_BYTES = 2**27
"""Largest file, three times that of the Graph Challenge. Reading it takes up to 20 times as much memory."""
_SHOWN = 100
"""Longest reason of NumPy's that is shown; it holds the text that is no number."""


def parse_triples(path: Path, data: bytes, rows: int, columns: int) -> SparseMatrix:
    """The matrix in a file's bytes, rows as sources and columns as targets. Raises CheckpointError, naming the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file, reported below
            table = np.loadtxt(BytesIO(data), dtype=np.float64, ndmin=2, comments=None, encoding="ascii")
    except ValueError as error:  # also for bytes that are not text
        reason = str(error).partition("\n")[0][:_SHOWN]
        raise CheckpointError(f"{path} has no triples 'row column value' ({reason}): write it again") from error
    if table.size == 0:
        raise CheckpointError(f"{path} is empty: write one triple 'row column value' per line")
    if table.shape[1] != 3:
        raise CheckpointError(f"{path} has {table.shape[1]} numbers per line, not 3: write 'row column value'")
    places = table[:, :2]
    wrong = (places != np.floor(places)) | (places < 1) | (places > (rows, columns))
    if wrong.any():
        line = int(np.flatnonzero(wrong.any(axis=1))[0])
        raise CheckpointError(
            f"{path}: line {line + 1} has row {places[line, 0]:g}, column {places[line, 1]:g}, outside a matrix of "
            f"{rows} x {columns} counted from 1: correct the number of neurons, or write the file again"
        )
    sources, targets = places.astype(np.int64).T - 1
    flat = sources * columns + targets
    _, first, counts = np.unique(flat, return_index=True, return_counts=True)
    if (counts > 1).any():
        at = int(first[counts > 1][0])
        raise CheckpointError(
            f"{path}: row {sources[at] + 1}, column {targets[at] + 1} occurs more than once: write each pair once"
        )
    with np.errstate(over="ignore"):
        values = table[:, 2].astype(np.float32)
    if not np.isfinite(values).all():
        line = int(np.flatnonzero(~np.isfinite(values))[0])
        raise CheckpointError(
            f"{path}: line {line + 1} has the value {table[line, 2]:g}, not a finite float32: check the training"
        )
    return SparseMatrix(sources, targets, values + np.float32(0))  # -0.0 is 0.0


def write_triples(path: Path, matrix: SparseMatrix) -> None:
    """Writes a matrix, with enough digits to read equal values back."""
    order = np.lexsort((matrix.targets, matrix.sources))
    rows = zip(
        (matrix.sources[order] + 1).tolist(),
        (matrix.targets[order] + 1).tolist(),
        matrix.values[order].tolist(),
        strict=True,
    )
    path.write_text("".join(f"{row}\t{column}\t{value:.9g}\n" for row, column, value in rows), encoding="ascii")


def read_rows(path: Path, count: int, neurons: int) -> FloatArray:
    """The dense inputs of a network, [count, neurons], from triples. Raises CheckpointError, naming the file."""
    matrix = parse_triples(path, read_file(path, MOST_BYTES), count, neurons)
    dense = np.zeros((count, neurons), dtype=np.float32)
    dense[matrix.sources, matrix.targets] = matrix.values
    return dense
