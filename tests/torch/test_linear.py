"""Large fully connected layers that are not compiled, in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make torch")

from farm.torch.operators import linear
from farm.torch.operators.linear import own_gemm
from farm.torch.operators.table import gemm


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Products that are transposed if all tensors are on a GPU and few weights count as many."""
    found: list[str] = []

    def addmm(*arguments: Any) -> torch.Tensor:
        found.append("turned")
        return torch.addmm(*arguments)

    precision = torch.get_float32_matmul_precision
    played = SimpleNamespace(addmm=addmm, float32=torch.float32, get_float32_matmul_precision=precision)
    monkeypatch.setattr(linear, "torch", played)
    monkeypatch.setattr(linear, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return found


@pytest.mark.parametrize(("rows", "times"), [(1, 0), (8, 1), (64, 1), (65, 0)])
def test_few_rows_are_multiplied_the_other_way_round_and_give_the_same(
    rows: int, times: int, turned: list[str]
) -> None:
    torch.manual_seed(0)
    x, weights, bias = torch.randn(rows, 40), torch.randn(12, 40), torch.randn(12)
    found = own_gemm(x, weights, bias, transB=1)
    torch.testing.assert_close(found, gemm(x, weights, bias, transB=1))
    assert (turned, found.is_contiguous()) == (["turned"] * times, True)


def test_other_products_stay_as_they_are(turned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, weights, bias = torch.randn(8, 40), torch.randn(12, 40), torch.randn(12)
    own_gemm(x.half(), weights.half(), bias.half(), transB=1)
    own_gemm(x, weights, None, transB=1)
    own_gemm(x, weights.T, bias)
    own_gemm(x, weights, bias, transB=1, alpha=0.5)
    torch.testing.assert_close(own_gemm(x, weights, bias, transB=1, beta=2.0), x @ weights.T + 2 * bias)
    torch.set_float32_matmul_precision("high")
    try:
        own_gemm(x, weights, bias, transB=1)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert turned == []
