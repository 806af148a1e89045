"""What the driver says of a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class DeviceFacts:
    """Of one, as it is and not what it does."""

    name: str
    arch: str
    capability: int
    """90 for 9.0."""
    driver: str
    """The CUDA version it serves at most."""
    multiprocessors: int
    clock_hz: float
    """At most; so the next."""
    memory_clock_hz: float
    bus_bits: int
    l2_bytes: int
    memory_bytes: int
    pci_bus: str
    """Where it is, as nvidia-smi takes it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
