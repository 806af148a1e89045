"""The image: what its linter says, and that all it copies is there and reaches the build."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.house.tree import ROOT
from tests.infra.documents import INFRA

DOCKERFILE = (INFRA / "Dockerfile").read_text()
IGNORED = (INFRA / "Dockerfile.dockerignore").read_text().splitlines()


def copied() -> set[str]:
    """The paths that the image copies from the checkout."""
    lines = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match(r"COPY (?!--)", line)]
    return {source for line in lines for source in line}


def test_its_linter_finds_nothing() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, INFRA / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_it_copies_is_there_and_is_all_that_the_wheel_is_made_of() -> None:
    assert not [source for source in copied() if not (ROOT / source).exists()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.partition(".")[0] for name in project["tool"]["setuptools"]["packages"]}
    files = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml", "constraints.txt"}
    assert copied() == packages | files | {"infra/install-pycuda"}


def test_the_build_is_given_what_is_copied_and_nothing_else() -> None:
    assert "*" in IGNORED
    assert {line.removeprefix("!") for line in IGNORED if line.startswith("!")} == copied()
    kept_out = [line for line in IGNORED if not line.startswith(("!", "#")) and line not in ("", "*")]
    needed = [*(ROOT / "codegen/kernels").glob("*.cu*"), ROOT / "farm/bundle/manifest.schema.json"]
    assert not [path for path in needed if any(fnmatch(str(path.relative_to(ROOT)), line) for line in kept_out)]


def test_it_runs_as_a_user_without_rights_and_with_ray_s_authentication_on() -> None:
    stages = {stage.split("\n")[0]: stage for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]}
    base = stages["debian:bookworm-slim AS base"]
    assert "RAY_AUTH_MODE=token" in base
    images = [stages["base AS gpu"], stages["base"]]  # the last is what is built unless another is named
    assert DOCKERFILE.endswith(images[-1])
    for image in images:
        assert re.search(r"^USER 1000:1000$", image, re.M)
        assert not re.search(r"\b(sudo|make|git|pip|python3-venv|python3-dev|build-essential)\b", base + image)
