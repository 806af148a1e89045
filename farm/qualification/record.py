"""AdmissionRecord: what a GPU found when it ran layers both ways. A frozen value, JSON and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, get_args

from codegen.ir.layer_spec import DataType
from codegen.keys import assembler_digest
from codegen.sass.qualification import Admission, Admissions

LEAST_LAYERS = 1000
"""Fewer admit nothing: what was wrong so far was seen in one layer of twenty, at least in one of hundreds."""


@dataclass(frozen=True)
class AdmissionRecord:
    """One trial of a data type on a GPU."""

    arch: str
    ptxas: str
    """Version."""
    data_type: DataType
    sources: str
    """Digest of the assembler's sources (`assembler_digest`): with others the record is stale."""
    gpu: str
    """Its name, as the driver has it."""
    driver: str
    """The CUDA version that it serves at most."""
    first: int
    """Number of the first layer that was drawn."""
    layers: int
    """Compared, with all their outputs."""
    shapes: int
    outputs: int
    refused: int
    """Layers that were drawn and that the assembler left to ptxas."""
    wrong: int
    """Layers of which an output differed, or with which the assembler broke."""
    tried_at: datetime

    @property
    def passed(self) -> bool:
        """Whether it admits."""
        return not self.wrong and self.layers >= LEAST_LAYERS

    @property
    def admission(self) -> Admission | None:
        """None of a trial that was too short to say anything."""
        if not self.passed and not self.wrong:
            return None
        return Admission(self.arch, self.ptxas, self.data_type, self.sources, self.passed)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `record_of_json` is its inverse."""
        return {**asdict(self), "tried_at": self.tried_at.isoformat(timespec="seconds")}


def admissions_of(records: Iterable[AdmissionRecord]) -> Admissions:
    """What they say to the assembler that is here."""
    return Admissions(frozenset(each for record in records if (each := record.admission)), assembler_digest())


_COUNTS = ("first", "layers", "shapes", "outputs", "refused", "wrong")
_KEYS = frozenset(each.name for each in fields(AdmissionRecord))


def record_of_json(value: Any) -> AdmissionRecord:
    """Reads what `to_json` wrote. Raises ValueError, in words, for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError("it is not an object")
    if wrong := _KEYS ^ value.keys():
        raise ValueError(f"{', '.join(sorted(wrong))}: it lacks that, or has it and should not")
    for name in _KEYS - {"tried_at"}:
        kind = int if name in _COUNTS else str
        if not isinstance(value[name], kind) or isinstance(value[name], bool):
            raise ValueError(f"its {name} {value[name]!r} is not {'a number' if kind is int else 'a text'}")
    if value["data_type"] not in get_args(DataType):
        raise ValueError(f"its data_type {value['data_type']!r} is not known")
    try:
        moment = datetime.fromisoformat(value["tried_at"])
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"its tried_at {value['tried_at']!r} is not a time with its zone")
    return AdmissionRecord(**{**value, "tried_at": moment})
