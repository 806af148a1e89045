"""1,000 checkpoints of a small network through the command line: submit, status meanwhile, cancel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from codegen.model_zoo import lenet5, write_network
from tests.benchmarks.ledger import databases, folder

CHECKPOINTS = 1000
ARCHS = "sm_75,sm_80,sm_86,sm_90,sm_120"
ROOT = Path(__file__).parents[2]


def submission() -> None:
    """1,000 LeNet-5 for 5 architectures are submitted within 30 s; a status takes under 0.5 s, a cancel under 2 s."""
    with folder() as path:
        models = [path / f"net{i:04}.onnx" for i in range(CHECKPOINTS)]
        for i, model in enumerate(models):
            write_network(model, lenet5(0.9, seed=i))
        for kind, url in databases():
            measure(kind, path / kind, url, models)


def measure(kind: str, store: Path, url: str, models: list[Path]) -> None:
    environment = {
        **os.environ,
        "FARM_STORE": f"file://{store}",
        "FARM_DATABASE_URL": url,
        "FARM_CONFIG": "",
        "PYTHONPATH": str(ROOT),
    }

    def farm(*arguments: str) -> tuple[float, str]:
        start = time.perf_counter()
        command = [sys.executable, "-m", "cli.main", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return time.perf_counter() - start, done.stdout

    farm("db", "upgrade")
    over = threading.Event()
    statuses: list[float] = []

    def watch() -> None:
        while not over.wait(1.0):
            statuses.append(farm("status")[0])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        submitted, said = farm("submit", *map(str, models), "--arch", ARCHS, "--json")
    finally:
        over.set()
        watcher.join()
    answer = json.loads(said)
    assert len(answer["jobs"]) == CHECKPOINTS
    print(f"  {kind}: submit {CHECKPOINTS} checkpoints for 5 architectures: {submitted:.1f} s")
    print(f"  {kind}: {len(statuses)} statuses meanwhile: the slowest {max(statuses):.2f} s")
    print(f"  {kind}: a status with all of them there: {farm('status')[0]:.2f} s")
    print(f"  {kind}: cancel all of them: {farm('cancel', '--submission', answer['submission'])[0]:.2f} s")
    print(f"  {kind}: retry all of them: {farm('retry', '--submission', answer['submission'])[0]:.2f} s")
