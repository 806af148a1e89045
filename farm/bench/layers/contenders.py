"""Contenders: the generated kernels and their peers, with data types and tolerances."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.ir.layer_spec import DataType

GENERATED = "generated"
"""Name of the farm's own kernels."""


@dataclass(frozen=True)
class Peer:
    """A library call or kernel that a user would use instead of a generated kernel."""

    name: str
    title: str
    """Name in figures and texts."""
    column: str
    """Short name in tables."""
    tolerance: float
    """Largest relative error, by norm, of a correct peer; beyond it the time is void."""
    reads_zeros: bool
    """Whether it computes with zero weights too, so that one time holds for every sparsity."""
    data_types: tuple[DataType, ...] = ("float32",)
    """Data types of the generated kernels compared with it."""
    listed: bool = True
    """Whether it has a column in the table; the JSON document has all peers."""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("cudnn-fp32", "cuDNN fp32", "CUDNN", 1e-4, True),
        Peer("cudnn-tf32", "cuDNN TF32", "TF32", 5e-3, True),
        Peer("cudnn-fp16", "cuDNN fp16", "FP16", 5e-3, True, ("float32", "float16")),
        Peer("cublas-fp32", "cuBLAS fp32", "CUBLAS", 1e-4, True),
        Peer("cublas-fp32-gemm", "cuBLAS fp32, GEMM alone", "GEMM", 1e-4, True, listed=False),
        Peer("cublas-tf32", "cuBLAS TF32", "BLAS-TF32", 5e-3, True, listed=False),
        Peer("cublas-tf32-gemm", "cuBLAS TF32, GEMM alone", "GEMM-TF32", 5e-3, True, listed=False),
        Peer("cusparse", "cuSPARSE", "CUSPARSE", 1e-4, False),
        Peer("cusparse-spmm", "cuSPARSE, SpMM alone", "SPMM", 1e-4, False, listed=False),
        Peer("escoin", "Escoin", "ESCOIN", 1e-4, False),
        Peer("gimmik", "GiMMiK", "GIMMIK", 1e-4, False),
    )
}
"""Peers by name. None of them adds the bias or runs the epilogue, which favours them."""


def title_of(contender: str) -> str:
    """Title of a contender; the name itself for an unknown one."""
    return PEERS[contender].title if contender in PEERS else contender


def peers_for(data_type: str, chosen: tuple[str, ...]) -> list[Peer]:
    """Chosen peers that are compared with kernels of a data type."""
    return [PEERS[name] for name in chosen if data_type in PEERS[name].data_types]
