"""The choice of a node for a request, and why a node gets none."""

from __future__ import annotations

from dataclasses import replace

from codegen.ir.tiling import Part, Tiling
from farm.executors.ray.nodes import Node, NodeFacts, Nodes
from farm.worker.messages import CubinRequest, TemplateRequest
from tests.samples import SMALL, fixed_toolchain

GIB = 2**30
TEMPLATE = TemplateRequest(SMALL, Tiling("conv2d", 8, 8, 1, 4, 3, 2), "compute_80", "11" * 32, 100)
CUBIN = CubinRequest(TEMPLATE, "22" * 32, Part(0, 1), "sm_90", ("-O3",), "33" * 32, 20_000)


def node(name: str, cpus: int = 2, memory_gib: float = 4, reason: str = "") -> Node:
    return Node(name, name, cpus, 0, int(memory_gib * GIB), reason)


def seen(*nodes: Node) -> Nodes:
    found = Nodes()
    assert found.see(nodes) == list(nodes)
    return found


def chosen(nodes: Nodes, request: CubinRequest = CUBIN) -> str | None:
    node = nodes.choose(request)
    return node.name if node else None


def test_a_machine_gets_work_once_it_is_checked_and_while_it_is_alive() -> None:
    unchecked = replace(node("a"), reason="not checked yet")
    nodes = seen(unchecked, node("b", reason="its ptxas is 12.9.1"))
    assert (chosen(nodes), nodes.capacity) == (None, 0)
    assert "b: its ptxas is 12.9.1" in nodes.refusal(CUBIN)
    unchecked.reason = ""
    assert (chosen(nodes), nodes.capacity) == ("a", 4)
    assert nodes.see([]) == []
    assert (chosen(nodes), nodes.capacity, nodes.states()) == (None, 0, [])
    assert nodes.see([unchecked]) == []
    assert chosen(nodes) == "a"


def test_the_machine_with_the_fewest_requests_for_its_cpus_comes_first() -> None:
    small, large = node("small", cpus=1), node("large", cpus=4)
    nodes = seen(small, large)
    given = []
    for i in range(10):
        request = replace(CUBIN, key=f"{i:064x}")
        found = nodes.choose(request)
        assert found
        nodes.give(found, request)
        given.append(found.name)
    assert (given.count("small"), given.count("large")) == (2, 8)


def test_a_request_larger_than_every_node_is_refused() -> None:
    nodes = seen(node("small", memory_gib=0.25), node("large", memory_gib=1))
    assert chosen(nodes) == "large"
    huge = replace(CUBIN, cost=1_000_000)
    assert chosen(nodes, huge) is None
    assert "needs about 16,384 MiB of memory, the largest has 1,024 MiB" in nodes.refusal(huge)


def test_a_request_whose_worker_died_goes_to_another_node_if_there_is_one() -> None:
    first, second = node("first", cpus=8), node("second", cpus=1)
    nodes = seen(first, second)
    nodes.give(first, CUBIN)
    nodes.take_back(first, CUBIN.key, failed=True, crashed=True)
    assert chosen(nodes) == "second"
    second.alive = False
    assert chosen(nodes) == "first"


def test_requested_memory_grows_in_powers_of_two_with_cost_and_after_out_of_memory() -> None:
    costs = range(1000, 60_000, 500)
    asked = [replace(CUBIN, cost=cost).memory_bytes for cost in costs]
    assert asked == sorted(asked)
    assert set(asked) == {GIB // 2, GIB}
    assert TEMPLATE.memory_bytes == GIB
    assert replace(CUBIN, memory_limit_bytes=16 * GIB).memory_bytes == 16 * GIB


def test_a_node_names_the_version_that_differs() -> None:
    here = NodeFacts.here(fixed_toolchain())
    assert here.difference(here) == ""
    difference = replace(here, ptxas="12.9.1").difference(here)
    assert difference.startswith("its ptxas is 12.9.1, the coordinator's is 13.0.88")
    assert "nvcc" in replace(here, nvcc="12.9.1").difference(here)
    assert "cicc or CUDA headers differ" in replace(here, compiler="0" * 64).difference(here)
    assert "program version" in replace(here, program="0" * 64).difference(here)


def test_what_each_machine_did_is_counted() -> None:
    only = node("only", cpus=1)
    nodes = seen(only)
    requests = [replace(CUBIN, key=f"{i:064x}") for i in range(4)]
    for request in requests:
        nodes.give(only, request)
    nodes.take_back(only, requests[0].key, failed=False)
    nodes.take_back(only, requests[1].key, failed=True)
    [state] = nodes.states()
    assert (state.accepted, state.finished, state.failed, state.running, state.pending) == (4, 1, 1, 1, 1)
    nodes.drop(only, [request.key for request in requests])
    [state] = nodes.states()
    assert (state.accepted, state.running, state.pending, state.oldest_seconds) == (4, 0, 0, 0.0)
