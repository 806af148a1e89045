"""Clusters: blocks that read each other's shared memory, and the barrier among them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from numpy.typing import NDArray

from codegen.emulator.ptx import emulate
from codegen.errors import EmulationError
from tests.unit.bench import FIRST, INDEX, REGISTERS, SHARED, words

THREADS, CLUSTER = 2, 2
WRITE = "st.shared.u32 [%r2], %r1; "
ARRIVE = "barrier.cluster.arrive.release.aligned; "
WAIT = "barrier.cluster.wait.acquire.aligned; "
LEAVE = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; ret;"
OTHER = "and.b32 %r4, %r8, 1; xor.b32 %r4, %r4, 1; mapa.shared::cluster.u32 %r5, %r2, %r4; "
READ = "ld.shared::cluster.u32 %r6, [%r5]; st.global.u32 [%rd1], %r6; "


def launch(
    body: str,
    blocks: int = 4,
    chosen: Sequence[tuple[int, int, int]] | None = None,
    threads: int = THREADS,
    interleaving: int | None = None,
) -> NDArray[emulate.np.uint32]:
    text = f"""
.version 9.0
.target sm_90
.extern .shared .align 16 .b8 tile[];
.visible .entry k(.param .u64 a) .explicitcluster .reqnctapercluster {CLUSTER}, 1, 1 {{
{REGISTERS}
{INDEX + FIRST + SHARED + body}
}}"""
    out = words(blocks * threads)
    grid, block = (blocks, 1, 1), (threads, 1, 1)
    emulate.run(text, grid, block, 4 * threads, [out], blocks=chosen, instruction_limit=1000, interleaving=interleaving)
    return out


def test_a_block_reads_what_another_of_its_cluster_wrote_before_the_barrier() -> None:
    out = launch(WRITE + ARRIVE + WAIT + OTHER + READ + LEAVE)
    assert out.tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


def test_blocks_go_on_between_arriving_and_waiting() -> None:
    out = launch(WRITE + ARRIVE + "add.u32 %r1, %r1, 0; " + OTHER + WAIT + READ + LEAVE)
    assert out.tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


def test_an_address_of_ones_own_means_the_same_block() -> None:
    own = OTHER.replace("xor.b32 %r4, %r4, 1; ", "")
    assert launch(WRITE + ARRIVE + WAIT + own + READ + LEAVE).tolist() == list(range(8))
    assert launch(WRITE + ARRIVE + WAIT + "mov.u32 %r5, %r2; " + READ + LEAVE).tolist() == list(range(8))


def test_only_whole_clusters_run() -> None:
    body = WRITE + ARRIVE + WAIT + OTHER + READ + LEAVE
    assert launch(body, chosen=[(3, 0, 0), (2, 0, 0)]).tolist() == [0, 0, 0, 0, 6, 7, 4, 5]
    with pytest.raises(EmulationError, match="a part of a cluster"):
        launch(body, chosen=[(1, 0, 0), (2, 0, 0)])
    with pytest.raises(EmulationError, match=r"grid of \(3, 1, 1\) cannot be cut into clusters"):
        launch(body, blocks=3)


def test_clusters_that_do_not_fit_together_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "_MEMORY_BYTES", 1)
    assert launch(WRITE + ARRIVE + WAIT + OTHER + READ + LEAVE).tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


def test_what_another_block_has_read_may_be_overwritten_after_a_barrier_of_the_cluster() -> None:
    again = ARRIVE + WAIT
    assert launch(WRITE + again + OTHER + READ + again + WRITE + LEAVE).tolist() == [2, 3, 0, 1, 6, 7, 4, 5]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (WRITE + OTHER + READ + ARRIVE + WAIT + "ret;", "written since the last barrier of the cluster|never written"),
        (
            WRITE + "bar.sync 0; " + OTHER + READ + ARRIVE + WAIT + "ret;",
            "written since the last barrier of the cluster",
        ),
        (
            WRITE + ARRIVE.replace("release", "relaxed") + WAIT + OTHER + READ + LEAVE,
            "written since the last barrier of the cluster",
        ),
        (
            WRITE
            + ARRIVE
            + WAIT
            + OTHER
            + READ
            + "setp.gt.u32 %p1, %r8, 0; @%p1 bra late; ret; late: "
            + READ
            + "ret;",
            "rank 0 in the cluster, which has ended",
        ),
        (
            WRITE + ARRIVE + WAIT + OTHER + READ + "bar.sync 0; " + WRITE + LEAVE,
            "read by another block since the last barrier, and is overwritten",
        ),
        (WRITE + WAIT + "ret;", "without having arrived"),
        (WRITE + ARRIVE + ARRIVE + WAIT + "ret;", "arrives twice at the cluster barrier without waiting"),
        (
            "setp.eq.u32 %p1, %r8, 0; @%p1 bra here; bar.sync 0; spin: bra spin; here: " + ARRIVE + WAIT + "ret;",
            "does not end",
        ),
        (OTHER.replace("xor.b32 %r4, %r4, 1", "mov.u32 %r4, 2") + "ret;", "rank 2 of a cluster of 2 blocks"),
        ("st.shared::cluster.u32 [%r2], %r1; ret;", "stores to the shared memory of other blocks"),
    ],
)
def test_what_no_cluster_may_do_is_an_error(body: str, reason: str) -> None:
    with pytest.raises(EmulationError, match=reason):
        launch(body)


def test_a_barrier_that_only_a_part_of_the_cluster_reaches_is_an_error() -> None:
    body = "setp.eq.u32 %p1, %r0, 0; @%p1 bra here; bar.sync 0; here: " + ARRIVE + WAIT + "ret;"
    with pytest.raises(EmulationError, match="only a part of"):
        launch(body)


def test_clusters_are_not_interleaved() -> None:
    with pytest.raises(EmulationError, match="blocks of 32 threads, 2 a cluster: only blocks of whole warps"):
        launch("ret;", threads=32, interleaving=0)
