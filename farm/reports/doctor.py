"""Checks of every requirement of a compile, each by using it."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from codegen.errors import CodegenError
from codegen.ir.checkpoint import Weights
from codegen.ir.layer_spec import Conv2d
from codegen.ir.tiling import Tiling
from codegen.ptx.rewrite import rewrite
from codegen.ptx.template import make_template
from codegen.sass.qualification import SUPPORTED_ARCHS, supported_data_types
from codegen.target.arch import virtual_arch
from codegen.toolchain.ptxas import assemble
from codegen.toolchain.tools import Toolchain, ToolLimits, find_toolchain
from farm.config.settings import Settings, ray_authentication, redacted
from farm.cuda.device import Device
from farm.errors import FarmError
from farm.executors import open_executor, open_gpu
from farm.executors.contract import UNCHECKED
from farm.executors.ray.connection import describe_authentication
from farm.ledger import database_revision, open_ledger
from farm.qualification.files import shipped_records
from farm.store import open_store

ARCH = "sm_90"
PROBE = b"farm doctor"
CHECK_SECONDS = 30.0
"""Time limit for the cluster's machines to report their tools."""
LOOK_SECONDS = 0.5
NONE_NOW = "has no machine for builds now: it starts some when there is work"


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: str
    ok: bool
    text: str
    """Facts about the part that works, or the fault."""
    way_out: str = ""


def checks(settings: Settings) -> Iterator[Check]:
    """Checks toolchain, store, database and executor, in the order in which a compile needs them."""
    named = settings.nvcc is not None or settings.ptxas is not None
    wheels = "pip install the pinned wheels and apt-get install g++"
    correct = "name tools that run in FARM_NVCC and FARM_PTXAS, or unset both to use the wheels"
    yield _try("toolchain", lambda: _toolchain(settings), correct if named else wheels)
    yield _try("compile", lambda: _compile(settings), "correct the toolchain first")
    yield _try("assembler", lambda: _assembler(settings), "correct the toolchain and the database first")
    yield _try("store", lambda: _store(settings), "set FARM_STORE to a folder or a bucket that can be written")
    yield _try("database", lambda: _database(settings), "set FARM_DATABASE_URL to a database that works")
    yield _try("executor", lambda: _executor(settings), "correct FARM_RAY_ADDRESS, or set FARM_EXECUTOR=processes")
    yield _gpu(settings)


def _try(name: str, use: Callable[[], str], way_out: str) -> Check:
    try:
        return Check(name, True, use())
    except (CodegenError, FarmError) as error:
        return Check(name, False, str(error), way_out)


def _tools(settings: Settings) -> Toolchain:
    return find_toolchain(settings.nvcc, settings.ptxas)


def _toolchain(settings: Settings) -> str:
    tools = _tools(settings)
    archs = tools.archs
    return f"nvcc {tools.nvcc_version}, ptxas {tools.ptxas_version}, {archs[0]} to {archs[-1]}, at {tools.ptxas.parent}"


def _compile(settings: Settings) -> str:
    """Compiles the smallest layer with every tool."""
    tools = _tools(settings)
    limits = ToolLimits(settings.tool_timeout_seconds, settings.tool_memory_bytes)
    spec = Conv2d(channels=1, height=4, width=4, output_channels=1, kernel_height=1, kernel_width=1)
    tiling = Tiling("conv2d", tile_width=4, tile_height=4, rows=1, group_outputs=1, chunk_channels=1, stages=2)
    template = make_template(spec, tiling, virtual_arch(ARCH), tools, limits)
    kernel = rewrite(template, Weights(np.ones(spec.weights_shape, np.float32), np.zeros(1, np.float32)))
    cubin = assemble(kernel.ptx, ARCH, tools, ("-O3",), limits)
    return f"a 1x1 convolution became {len(cubin.data)} bytes of {ARCH} code in {cubin.seconds:.2f} s of ptxas"


def _assembler(settings: Settings) -> str:
    """Data types that are assembled directly, and why the others are not."""
    ledger, ptxas = open_ledger(settings), _tools(settings).ptxas_version
    try:
        records, known = [*ledger.qualifications.records(), *shipped_records()], ledger.qualifications.known()
    finally:
        ledger.close()
    told = []
    tried = {each.arch for each in known.known}
    for arch in (each for each in SUPPORTED_ARCHS if each in tried):
        for data_type in supported_data_types(arch):
            reason = known.unqualified_reason(arch, ptxas, data_type)
            gpus = {each.gpu: each.layers for each in records if each.qualification in known.of(arch, ptxas, data_type)}
            seen = ", ".join(f"{layers:,} layers on {gpu}" for gpu, layers in gpus.items())
            told.append(reason or f"{arch} {data_type} without ptxas {ptxas} (the same in {seen})")
    if untried := [arch for arch in SUPPORTED_ARCHS if arch not in tried]:
        told.append(f"{', '.join(untried)} not qualified: run farm qualify on such a GPU, or take --trust checked")
    return "; ".join([*told, "all else by ptxas"])


def _store(settings: Settings) -> str:
    store = open_store(settings)
    signed = f"{store.describe()}, records {'not ' * (settings.signing_keys is None)}signed"
    if settings.read_only:
        return f"{signed}, read-only"
    if store.get(store.put(PROBE)) != PROBE:
        raise FarmError(f"{store.describe()} does not give back what was written")
    return signed


def _database(settings: Settings) -> str:
    counts = open_ledger(settings).counts()
    return f"{redacted(settings.database_url)}, revision {database_revision(settings)[0]}, {sum(counts.values())} jobs"


def _executor(settings: Settings) -> str:
    if settings.executor == "inline":
        return "inline: one build at a time, in the command itself"
    if settings.executor == "processes":
        return f"processes: {settings.jobs} builds at a time on this machine, without Ray"
    if importlib.util.find_spec("ray") is None:
        raise FarmError("Ray is not installed")
    if settings.ray_address is None:
        if settings.executor == "auto":
            return f"{settings.jobs} processes of this machine; for work of minutes Ray, started here with as many CPUs"
        return f"Ray, started on this machine with {settings.jobs} CPUs when there is work"
    with open_executor(settings, open_store(settings), _tools(settings)) as executor:
        end = time.monotonic() + CHECK_SECONDS
        room = executor.capacity
        while any(state.reason == UNCHECKED for state in executor.workers()) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            room = executor.capacity
        idle = [f"{state.node} gets no work: {state.reason}" for state in executor.workers() if state.reason]
    takes = f"takes {room} builds at a time" if room else NONE_NOW
    told = f"the Ray cluster at {settings.ray_address}, {describe_authentication(ray_authentication())}, {takes}"
    return "; ".join([told, *idle])


def _gpu(settings: Settings) -> Check:
    """Describes the GPU; a machine without one passes."""
    try:
        with open_gpu(replace(settings, worker_wait_seconds=0)) as host:
            if host.is_remote:
                return Check("gpu", True, "the cluster has one: farm verify --gpu, farm tune and farm bench run there")
            with Device() as device:
                return Check("gpu", True, f"{device.name}, {device.arch}: farm verify --gpu works")
    except (CodegenError, FarmError) as error:
        return Check("gpu", True, f"none is needed; farm verify --gpu is off: {error}")
