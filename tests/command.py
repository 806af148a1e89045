"""The command `farm` in a process of its own, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def own_environment(home: Path) -> dict[str, str]:
    """Environment of this process with that folder as home and without settings of a farm."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("FARM_", "RAY_", "AWS_", "PG"))}
    homes = {f"XDG_{kind.upper()}_HOME": str(home / kind) for kind in ("cache", "config", "data")}
    homes |= {"FARM_RUNTIME_DIR": str(home / "run"), "HOME": str(home), "AWS_EC2_METADATA_DISABLED": "true"}
    return {**ours, **homes}


def farm(home: Path, environment: Mapping[str, str], *arguments: str) -> Ended:
    """Nothing but these variables configures it, and its home is this folder."""
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=ROOT,
        env={**own_environment(home), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
