"""TuningRecord: the fastest tiling measured for a kind of layer on a GPU; frozen values with a JSON form."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, get_args

from codegen.ir.layer_spec import LayerSpec, spec_from_json
from codegen.ir.tiling import Accumulator, KernelName, Order, Tiling
from codegen.keys import digest_fields


def plain_arch(arch: str) -> str:
    """Architecture without its letter: sm_90a is the same GPU as sm_90."""
    return arch if arch[-1].isdigit() else arch[:-1]


@dataclass(frozen=True)
class TuningKey:
    """The kind of layer that a record is for; layers with equal keys get the same tiling."""

    arch: str
    """Architecture without a letter, from `plain_arch`."""
    spec: LayerSpec
    """Result of `tuned_spec`."""
    batch_band: int
    """Band of the batch in images, or in rows of a Linear."""
    density_band: float
    accumulate: Accumulator
    optimisation: int
    """Optimisation level of ptxas."""

    @property
    def digest(self) -> str:
        """Digest that names the key in the ledger."""
        return digest_fields({name: json.dumps(value, sort_keys=True) for name, value in self.to_json().items()})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "arch": self.arch,
            "spec": self.spec.to_json(),
            "batch_band": self.batch_band,
            "density_band": self.density_band,
            "accumulate": self.accumulate,
            "optimisation": self.optimisation,
        }


@dataclass(frozen=True)
class TuningRecord:
    """The fastest tiling found for a key on one GPU."""

    key: TuningKey
    gpu: str
    """Name reported by the driver."""
    tiling: Tiling
    microseconds: float
    """Warm time of one launch at this batch and density: code in the caches, data not."""
    model_microseconds: float
    """Warm time of the cost model's first choice."""
    tried: int
    """Tilings measured."""
    cubins: tuple[str, ...]
    """Digests of the measured cubins, one per part."""
    measured_at: datetime
    cold_microseconds: float | None = None
    """Cold time, as in a network where other layers run in between; None for a record chosen by warm times."""
    model_cold_microseconds: float | None = None
    """Cold time of the cost model's first choice."""

    def beats(self, other: TuningRecord) -> bool:
        """Whether it is better than another record of its key: cold times first, then the faster one."""
        return self._order < other._order

    @property
    def _order(self) -> tuple[bool, float]:
        cold = self.cold_microseconds
        return (True, self.microseconds) if cold is None else (False, cold)

    @property
    def slower(self) -> float:
        """Time of the cost model's first choice over this tiling's: cold times if known, else warm."""
        if self.cold_microseconds is None or self.model_cold_microseconds is None:
            return self.model_microseconds / self.microseconds
        return self.model_cold_microseconds / self.cold_microseconds

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `record_of_json` is the inverse."""
        cold = {"cold_microseconds": self.cold_microseconds, "model_cold_microseconds": self.model_cold_microseconds}
        return {
            "gpu": self.gpu,
            **self.key.to_json(),
            "tiling": self.tiling.to_json(),
            "microseconds": round(self.microseconds, 3),
            "model_microseconds": round(self.model_microseconds, 3),
            **{name: round(value, 3) for name, value in cold.items() if value is not None},
            "tried": self.tried,
            "cubins": list(self.cubins),
            "measured_at": self.measured_at.isoformat(timespec="seconds"),
        }


MOST_POSITIONS, MOST_CHANNELS = 65_536, 65_536
"""Most positions of a block, and most channels of its outputs and of its chunks together: more than any record has."""
CLUSTERS = (1, 2, 4, 8)
"""Blocks of a cluster; more are not portable between GPUs."""
MOST_OPTIMISATION = 3
"""Highest level of ptxas."""
MOST_WHOLE = 2**31 - 1
"""Largest number that the ledger's columns hold in every database."""
_ARCH = re.compile(r"sm_[0-9]{2,3}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

_COLD = frozenset({"cold_microseconds", "model_cold_microseconds"})
"""Present only in records chosen by cold times."""
_KEYS = frozenset(
    {
        *(each.name for each in fields(TuningKey)),
        *(each.name for each in fields(TuningRecord) if each.name not in ("key", *_COLD)),
    }
)


def record_of_json(value: Any) -> TuningRecord:
    """Reads the output of `to_json`. Raises ValueError, with the reason, for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError("it is not an object")
    if missing := _KEYS - value.keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    if foreign := value.keys() - _KEYS - _COLD:
        raise ValueError(f"{', '.join(sorted(foreign))} is not known here")
    key, tiling = _key_of_json(value), tiling_of_json(value["tiling"])
    if tiling.accumulate != key.accumulate:
        raise ValueError("its tiling adds up in another type than it says")
    return TuningRecord(
        key=key,
        gpu=_text(value, "gpu"),
        tiling=tiling,
        microseconds=_positive(value, "microseconds"),
        model_microseconds=_positive(value, "model_microseconds"),
        tried=_whole(value, "tried"),
        cubins=_digests(value["cubins"]),
        measured_at=_moment(value),
        cold_microseconds=_positive_or_none(value, "cold_microseconds"),
        model_cold_microseconds=_positive_or_none(value, "model_cold_microseconds"),
    )


def tiling_of_json(value: Any) -> Tiling:
    """Reads the output of `Tiling.to_json`. Raises ValueError for anything else."""
    try:
        tiling = Tiling(**value)
    except TypeError:
        raise ValueError(f"its tiling {value!r} is not one of this version") from None
    texts = ("kernel", "accumulate", "form", "order")
    numbers = {name: number for name, number in tiling.to_json().items() if name not in texts}
    whole = all(type(number) is int and number >= (name != "stages") for name, number in numbers.items())
    names = tiling.kernel in get_args(KernelName) and tiling.accumulate in get_args(Accumulator)
    names = names and tiling.order in get_args(Order) and tiling.form == "rolled"
    if not whole or not names or not _has_size(tiling):
        raise ValueError(f"its tiling {value!r} cannot be chosen")
    return tiling


def _has_size(tiling: Tiling) -> bool:
    """Whether its numbers are of a size that some GPU has: whether a larger one fits a layer takes hours to tell."""
    positions = tiling.tile_width * tiling.tile_height * tiling.rows * tiling.images
    outputs, chunks = tiling.group_outputs * tiling.groups, tiling.chunk_channels * max(1, tiling.stages)
    return positions <= MOST_POSITIONS and max(outputs, chunks) <= MOST_CHANNELS and tiling.cluster in CLUSTERS


def _key_of_json(value: Mapping[str, Any]) -> TuningKey:
    try:
        spec = spec_from_json(value["spec"])
        hash(spec)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"its spec {value['spec']!r} is not one of this version") from None
    accumulate = value["accumulate"]
    if accumulate not in get_args(Accumulator):
        raise ValueError(f"its accumulate {accumulate!r} is not float32 or float16")
    density, optimisation = _positive(value, "density_band"), _whole(value, "optimisation")
    if density > 1:
        raise ValueError(f"its density_band {density} is above 1")
    if optimisation > MOST_OPTIMISATION:
        raise ValueError(f"its optimisation {optimisation} is above {MOST_OPTIMISATION}")
    return TuningKey(
        arch=_matching(value["arch"], "arch", _ARCH),
        spec=spec,
        batch_band=_whole(value, "batch_band", least=1),
        density_band=density,
        accumulate=accumulate,
        optimisation=optimisation,
    )


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value[name]
    if not isinstance(found, str) or not found:
        raise ValueError(f"its {name} {found!r} is not a text")
    return found


def _matching(found: Any, name: str, pattern: re.Pattern[str]) -> str:
    if not isinstance(found, str) or not pattern.fullmatch(found):
        raise ValueError(f"its {name} {found!r} does not match {pattern.pattern}")
    return found


def _whole(value: Mapping[str, Any], name: str, least: int = 0) -> int:
    found = value[name]
    if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= MOST_WHOLE:
        raise ValueError(f"its {name} {found!r} is not a whole number from {least} to {MOST_WHOLE}")
    return found


def _positive(value: Mapping[str, Any], name: str) -> float:
    found = value[name]
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found <= sys.float_info.max:
        raise ValueError(f"its {name} {found!r} is not a number above 0")
    return float(found)


def _positive_or_none(value: Mapping[str, Any], name: str) -> float | None:
    return None if value.get(name) is None else _positive(value, name)


def _digests(found: Any) -> tuple[str, ...]:
    if not isinstance(found, list):
        raise ValueError(f"its cubins {found!r} are not a list of digests")
    return tuple(_matching(each, "cubin", _DIGEST) for each in found)


def _moment(value: Mapping[str, Any]) -> datetime:
    try:
        moment = datetime.fromisoformat(value["measured_at"])
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"its measured_at {value['measured_at']!r} is not a time with its zone")
    return moment
