"""Coverage of a model: the compiled shares of its weights and of its multiply-adds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from codegen.ir.layer_spec import SkippedLayer
from farm.jobs.model import Build

LOW = 0.9
"""Share of weights or multiply-adds below which there is a warning."""


@dataclass(frozen=True)
class Coverage:
    """Compiled weights and multiply-adds of a model; nodes without weights do not count."""

    compiled: int
    """Compiled layers."""
    skipped: int
    weights: int
    """Number of weights of the compiled layers."""
    all_weights: int
    """Weights of compiled layers and of skipped layers of known size."""
    nonzeros: int
    multiply_adds: int
    """Multiply-adds per image of the compiled layers, if no weight were zero."""
    all_multiply_adds: int
    of_unknown_size: int
    """Skipped layers of unknown size; with any, the shares are upper bounds."""

    def share_of_weights(self, weights: int) -> float:
        """0 to 1."""
        return weights / self.all_weights if self.all_weights else 0.0

    def share_of_multiply_adds(self, multiply_adds: int) -> float:
        """0 to 1."""
        return multiply_adds / self.all_multiply_adds if self.all_multiply_adds else 0.0

    @property
    def is_low(self) -> bool:
        """Whether less than LOW of the weights or the multiply-adds is compiled."""
        shares = self.share_of_weights(self.weights), self.share_of_multiply_adds(self.multiply_adds)
        return min(shares) < LOW


def coverage_of(builds: Iterable[Build], skipped: Iterable[SkippedLayer]) -> Coverage:
    """The coverage of one job; a layer with several builds, one per tiling, counts once."""
    layers = {build.position: build for build in builds}.values()
    left_out = tuple(skipped)
    weights = sum(build.spec.weights_count for build in layers)
    multiply_adds = sum(multiply_adds_of(build) for build in layers)
    return Coverage(
        compiled=len(layers),
        skipped=len(left_out),
        weights=weights,
        all_weights=weights + sum(layer.weights or 0 for layer in left_out),
        nonzeros=sum(build.nonzeros for build in layers),
        multiply_adds=multiply_adds,
        all_multiply_adds=multiply_adds + sum(layer.multiply_adds or 0 for layer in left_out),
        of_unknown_size=sum(layer.weights is None or layer.multiply_adds is None for layer in left_out),
    )


def coverage_warning(job: str, coverage: Coverage) -> str | None:
    """Warning about a job's coverage; None if it is sufficient."""
    if not coverage.is_low:
        return None
    weights, multiply_adds = (
        coverage.share_of_weights(coverage.weights),
        coverage.share_of_multiply_adds(coverage.multiply_adds),
    )
    most = "at most" if coverage.of_unknown_size else "only"
    return (
        f"{job}: {most} {weights:.1%} of the weights and {multiply_adds:.1%} of the multiply-adds will be compiled, "
        f"{coverage.skipped} of {coverage.compiled + coverage.skipped} layers are skipped: farm plan says why"
    )


def multiply_adds_of(build: Build) -> int:
    """Multiply-adds per image, zero weights included."""
    return build.spec.multiply_adds * build.likely_rows
