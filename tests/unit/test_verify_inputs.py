"""Random inputs of `farm verify --network`."""

from __future__ import annotations

import pytest

from codegen.frontend.onnx.export.residual_graph import Tensor
from farm.errors import UsageError
from farm.verify.network import network_inputs

FIXED, OPEN = Tensor("x", "float32", (4, 8)), Tensor("y", "float32", ("N", 8))


def test_a_network_that_fixes_its_batch_takes_no_other() -> None:
    assert [len(each) for given in (None, 4) for each in network_inputs([FIXED], given, 0)] == [4, 4]
    with pytest.raises(UsageError, match="--batch 3: the network's inputs fix the batch at 4: leave --batch out"):
        network_inputs([FIXED], 3, 0)


def test_a_network_takes_any_batch_if_one_of_its_inputs_leaves_it_open() -> None:
    assert [len(each) for each in network_inputs([FIXED, OPEN], 3, 0)] == [4, 3]
    assert [len(each) for each in network_inputs([OPEN], None, 0)] == [2]
