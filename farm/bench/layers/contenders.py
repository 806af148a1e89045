"""Who is measured: the generated kernels and their peers, what each computes with and how exact it must be."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.ir.layer_spec import DataType

GENERATED = "generated"
"""The farm's own kernels."""


@dataclass(frozen=True)
class Peer:
    """What a user would call instead of a generated kernel."""

    name: str
    title: str
    """For people."""
    column: str
    """For a narrow table."""
    tolerance: float
    """Norm of the error over norm of the float64 reference: beyond this a peer is wrong, its time void."""
    reads_zeros: bool
    """Computes with the zero weights too: one time holds for every sparsity."""
    data_types: tuple[DataType, ...] = ("float32",)
    """Data types of the generated kernels that it is compared with."""
    listed: bool = True
    """Has a column in the table; all are in the JSON document."""


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
"""By name.

None of them adds the bias or runs what the generated kernel computes after its sums: that favours them.
"""


def title_of(contender: str) -> str:
    """For people; the name itself for one that is not known here."""
    return PEERS[contender].title if contender in PEERS else contender


def peers_for(data_type: str, chosen: tuple[str, ...]) -> list[Peer]:
    """Those of the chosen ones that kernels of this data type are compared with."""
    return [PEERS[name] for name in chosen if data_type in PEERS[name].data_types]
