"""One test for each network and sparsity."""

from __future__ import annotations

import pytest

from codegen.model_zoo import NETWORKS

SPARSITY = 0.9
SPARSITIES = (0.8, SPARSITY, 0.95)
LARGEST_FIRST = ("resnet50", "resnet18", "unet", "vgg16", "mobilenet_v2")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The networks that take longest come first, so that processes which share them end at about the same time."""
    if {"network", "sparsity"} <= set(metafunc.fixturenames):
        sparsities = SPARSITIES if metafunc.config.getoption("--every-sparsity") else (SPARSITY,)
        networks = [*LARGEST_FIRST, *(name for name in NETWORKS if name not in LARGEST_FIRST)]
        cases = [
            # One process for the sparsities of a network: they share templates, and VGG-16 takes 3 GB of memory.
            pytest.param(name, sparsity, id=f"{name}-{sparsity}", marks=pytest.mark.xdist_group(name))
            for name in networks
            for sparsity in sparsities
        ]
        metafunc.parametrize(("network", "sparsity"), cases)
