"""Shared memory that kernels ask for so that their blocks lie evenly on the multiprocessors."""

from __future__ import annotations

from math import ceil

import pytest

from farm.cuda.even_blocks import SharedMemory, even_bytes

H200 = SharedMemory(132, 233472, 232448, 1024)
RTX_5060 = SharedMemory(30, 102400, 101376, 1024)
GPUS = {"H200": H200, "RTX 5060": RTX_5060}
NEEDED = 2000


def resident(gpu: SharedMemory, asked: int) -> int:
    """Blocks for which a multiprocessor has shared memory."""
    return gpu.multiprocessor_bytes // (asked + gpu.reserved_bytes)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
@pytest.mark.parametrize("blocks", [1, 30, 31, 132, 133, 900])
def test_a_multiprocessor_has_room_for_its_share_of_the_blocks_and_no_more(blocks: int, gpu: SharedMemory) -> None:
    asked = even_bytes(NEEDED, blocks, 1, gpu)
    assert asked <= gpu.block_bytes
    assert asked == NEEDED or resident(gpu, asked) == ceil(blocks / gpu.multiprocessors)


def test_one_block_a_multiprocessor_takes_all_that_it_may_have() -> None:
    assert even_bytes(NEEDED, 132, 1, H200) == 232448
    assert even_bytes(NEEDED, 30, 1, RTX_5060) == 101376


@pytest.mark.parametrize(("cluster", "usable"), [(1, 132), (2, 132), (4, 120), (8, 120)])
def test_clusters_share_the_multiprocessors_that_they_reach(cluster: int, usable: int) -> None:
    for blocks, share in ((usable, 1), (usable + cluster, 2), (2 * usable, 2), (2 * usable + cluster, 3)):
        assert resident(H200, even_bytes(NEEDED, blocks, cluster, H200)) == share


@pytest.mark.parametrize("blocks", [132, 40_000, 1 << 40])
def test_a_block_asks_for_no_less_than_it_needs(blocks: int) -> None:
    assert even_bytes(150_000, 133, 1, H200) == 150_000
    assert even_bytes(NEEDED, blocks, 1, H200) >= NEEDED
    assert even_bytes(NEEDED, blocks, 8, SharedMemory(4, 102400, 101376, 1024)) >= NEEDED
