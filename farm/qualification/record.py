"""QualificationRecord: the result of one qualification run on a GPU; a frozen value with a JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any, get_args

from codegen.ir.layer_spec import DataType
from codegen.keys import assembler_digest
from codegen.sass.qualification import Qualification, Qualifications

MIN_LAYERS = 1000
"""Layers that a pass needs: past defects showed in one layer of twenty, at the rarest in one of hundreds."""


@dataclass(frozen=True)
class QualificationRecord:
    """Result of one qualification run for a data type on a GPU."""

    arch: str
    ptxas: str
    """Version."""
    data_type: DataType
    sources: str
    """Digest of the assembler's sources (`assembler_digest`); the record is stale for any other digest."""
    gpu: str
    """Name reported by the driver."""
    driver: str
    """Newest CUDA version that the driver supports."""
    first: int
    """Number of the first layer drawn."""
    layers: int
    """Layers compared, each with all its outputs."""
    shapes: int
    outputs: int
    refused: int
    """Layers drawn that the assembler left to ptxas."""
    wrong: int
    """Layers with a differing output, or on which the assembler crashed."""
    finished_at: datetime

    @property
    def passed(self) -> bool:
        """Whether enough layers were compared and none was wrong."""
        return not self.wrong and self.layers >= MIN_LAYERS

    @property
    def qualification(self) -> Qualification | None:
        """The result for the assembler; None if too few layers were compared to tell."""
        if not self.passed and not self.wrong:
            return None
        return Qualification(self.arch, self.ptxas, self.data_type, self.sources, self.passed, self.gpu)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `record_of_json` is the inverse."""
        return {**asdict(self), "finished_at": self.finished_at.isoformat(timespec="seconds")}


@dataclass(frozen=True)
class SameCode:
    """Two versions of the assembler's sources that made the same cubins, byte for byte, compared without a GPU."""

    arch: str
    ptxas: str
    data_type: str
    measured: str
    """Digest of the sources whose cubins a GPU has run."""
    sources: str
    """Digest of the later sources."""
    layers: int
    """Layers compared, of those that the GPU ran."""

    def carry(self, records: Iterable[QualificationRecord]) -> Iterator[QualificationRecord]:
        """The records of the earlier sources, as far as their layers were compared, for the later ones."""
        for each in records:
            if (each.arch, each.ptxas, each.data_type, each.sources) == (
                *(self.arch, self.ptxas, self.data_type),
                self.measured,
            ):
                yield replace(each, sources=self.sources, layers=min(each.layers, self.layers))


def same_code_of_json(value: Any) -> SameCode:
    """Reads a claim as JSON. Raises ValueError, with the reason, for anything else."""
    names = {each.name for each in fields(SameCode)}
    if not isinstance(value, Mapping) or value.keys() != names:
        raise ValueError(f"same_code is not an object of {', '.join(sorted(names))}")
    for name, each in value.items():
        if not isinstance(each, int if name == "layers" else str) or isinstance(each, bool):
            raise ValueError(f"same_code: {name} {each!r} is not {'an integer' if name == 'layers' else 'a string'}")
    return SameCode(**value)


def qualifications_of(records: Iterable[QualificationRecord]) -> Qualifications:
    """Results of these records, for the installed assembler."""
    return Qualifications(frozenset(each for record in records if (each := record.qualification)), assembler_digest())


_COUNTS = ("first", "layers", "shapes", "outputs", "refused", "wrong")
_KEYS = frozenset(each.name for each in fields(QualificationRecord))


def record_of_json(value: Any) -> QualificationRecord:
    """Reads the output of `to_json`. Raises ValueError, with the reason, for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    if wrong := _KEYS ^ value.keys():
        raise ValueError(f"missing or unexpected: {', '.join(sorted(wrong))}")
    for name in _KEYS - {"finished_at"}:
        kind = int if name in _COUNTS else str
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise ValueError(f"{name} {value[name]!r} is not {'an integer' if kind is int else 'a string'}")
        if kind is int and value[name] < 0:
            raise ValueError(f"{name} {value[name]} is below 0")
    if value["data_type"] not in get_args(DataType):
        raise ValueError(f"unknown data_type {value['data_type']!r}")
    try:
        moment = datetime.fromisoformat(value["finished_at"])
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"finished_at {value['finished_at']!r} is not a time with a time zone")
    return QualificationRecord(**{**value, "finished_at": moment})
