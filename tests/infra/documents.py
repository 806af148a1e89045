"""The files of infra/, as Python values; and the commands that stand in them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import yaml

from tests.house.tree import ROOT

INFRA = ROOT / "infra"
SLURM = (INFRA / "slurm.sbatch").read_text()
KUBERAY = sorted((INFRA / "kuberay").glob("*.yaml"))
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGE = f"sparse-compile-farm:{VERSION}"

WORD = r"""(?:"[^"]*"|[^\s"';&|>)\]`])+"""


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((INFRA / name).read_text()))


def kubernetes(kind: str) -> list[Any]:
    found = [document for path in KUBERAY for document in yaml.safe_load_all(path.read_text())]
    return [document for document in found if document["kind"] == kind]


def pod_specs() -> dict[str, Any]:
    """Every pod that the manifests make, by a name for it."""
    [cluster] = kubernetes("RayCluster")
    groups = {each["groupName"]: each for each in cluster["spec"]["workerGroupSpecs"]}
    specs = {name: each["template"]["spec"] for name, each in groups.items()}
    specs["head"] = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    return specs | {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in kubernetes("Deployment")}


def texts(value: Any) -> Iterator[str]:
    """Every text in a document; a list of words is one command, unless its items are commands."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        if all(isinstance(each, str) for each in value) and " " not in value[0]:
            yield " ".join(value)
        yield from (text for each in value for text in texts(each))


def commands(program: str) -> set[tuple[str, ...]]:
    """Calls of a program in the files, each as its words: in their values, and in README.md between backquotes."""
    paths = [*INFRA.glob("*.yaml"), *KUBERAY]
    told = [text for path in paths for each in yaml.safe_load_all(path.read_text()) for text in texts(each)]
    readme = (INFRA / "README.md").read_text()
    told += re.findall(rf"\b{program} [^&\n]+", re.sub(r"\\\n|^#.*$", "", SLURM, flags=re.M))
    told += [*re.findall(r"`([^`\n]+)`", readme), *re.findall(r"^    (.+?)(?:  #.*)?$", readme, re.M)]
    pattern = rf"(?:^|[;&(]|\bsetsid|\bexec) *{program}((?: +{WORD})+)"
    return {(program, *re.findall(WORD, call)) for text in told for call in re.findall(pattern, text)}
