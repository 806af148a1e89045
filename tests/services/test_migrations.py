"""The migrations make the tables that the code speaks of, and keep what was in them."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

import migrations
from codegen.ir.layer_spec import Conv2d, Linear
from codegen.ir.tiling import Part, Tiling
from farm.errors import LedgerError
from farm.jobs.model import BuildOptions, BuildResult, NewJob, NewSubmission, Outcome, Status, TilingChoice
from farm.ledger import Ledger, database_revision
from farm.ledger.database import open_engine
from farm.ledger.schema import HEAD
from farm.ledger.tables import metadata
from tests.services.conftest import Database
from tests.services.meeting import BARRIER, will_meet
from tests.tuning_samples import record


def opened(database: Database) -> Ledger:
    """Brought up to date before."""
    database.upgrade()
    return database.open()


def migrate(database: Database, revision: str) -> None:
    """To any revision, up or down."""
    if database.kind == "sqlite":
        Path(database.settings.database_url.removeprefix("sqlite:///")).parent.mkdir(exist_ok=True)
    engine = open_engine(database.settings.database_url)
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["engine"] = engine
    found = database_revision(database.settings)[0]
    up = revision != "base" and (found is None or found < revision)
    (command.upgrade if up else command.downgrade)(config, revision)
    engine.dispose()


def execute(database: Database, statement: str, rows: list[dict[str, Any]] | None = None) -> None:
    engine = open_engine(database.settings.database_url)
    with engine.execution_options(farm_writes=True).begin() as connection:
        connection.execute(text(statement), rows)
    engine.dispose()


SPEC_OF_0001 = {
    "operator": "conv2d",
    "channels": 3,
    "height": 8,
    "width": 9,
    "kernels": 10,
    "kernel_height": 3,
    "kernel_width": 3,
    "stride": [1, 2],
    "padding": [1, 0, 1, 2],
}
OPTIONS_OF_0001 = {"archs": ["sm_80", "sm_90"], "batch": 64, "form": "rolled", "optimisation": 3, "strict": False}
TILING = Tiling(8, 8, 1, 4, 3, 2)
ROWS_OF_0001: dict[str, list[dict[str, Any]]] = {
    "submissions": [{"id": "s1", "submitter": "ada", "submitted_at": 1.5}],
    "jobs": [
        {
            "number": 1,
            "id": "aaaa1111",
            "submission": "s1",
            "name": "net",
            "model": "/models/net.onnx",
            "model_digest": "cd" * 32,
            "request_digest": "ef" * 32,
            "options": json.dumps(OPTIONS_OF_0001),
            "skipped": "[]",
            "status": "SUCCEEDED",
            "reason": "",
            "stage": "",
            "done": 2,
            "total": 2,
            "hits": 1,
            "tries": 1,
            "submitted_at": 1.5,
            "started_at": 2.5,
            "finished_at": 3.5,
            "coordinator": None,
            "lease_until": None,
        }
    ],
    "builds": [
        {
            "id": 7,
            "job": "aaaa1111",
            "position": 0,
            "layer": "conv1",
            "input": "x",
            "output": "y",
            "spec": json.dumps(SPEC_OF_0001),
            "tiling": json.dumps({name: value for name, value in TILING.to_json().items() if name != "accumulate"}),
            "weights": "ab" * 32,
            "nonzeros": 11,
        }
    ],
    "results": [
        {
            "build": 7,
            "arch": arch,
            "job": "aaaa1111",
            "outcome": "built",
            "template_key": "11" * 32,
            "cubin_key": "22" * 32,
            "cubin": "33" * 32,
            "cubin_bytes": 4096,
            "ptx": "44" * 32,
            "fmas_kept": 5,
            "fmas_deleted": 6,
            "registers": 40,
            "spill_bytes": 8,
            "template_seconds": 0.5,
            "rewrite_seconds": 0.01,
            "ptxas_seconds": 0.2,
            "error": "",
            "command": "",
        }
        for arch in ("sm_80", "sm_90")
    ],
    "events": [{"id": 1, "job": "aaaa1111", "at": 2.5, "level": "info", "text": "succeeded"}],
}


def rows_in(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Everything that the tables of 0001 hold, column by column."""
    engine = open_engine(database.settings.database_url)
    with engine.connect() as connection:
        found = {
            table: [dict(row) for row in connection.execute(text(f"select * from {table} order by 1, 2")).mappings()]
            for table in ROWS_OF_0001
        }
    engine.dispose()
    return found


def fill_0001(database: Database) -> None:
    migrate(database, "0001")
    for table, rows in ROWS_OF_0001.items():
        places = ", ".join(f":{name}" for name in rows[0])
        execute(database, f"insert into {table} ({', '.join(rows[0])}) values ({places})", rows)
    if database.kind == "postgresql":  # where a number that is given does not count as given out
        for table, column in (("jobs", "number"), ("builds", "id"), ("events", "id")):
            execute(
                database, f"select setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) from {table}"
            )


def upgrade_and_count(database: Database) -> int:
    BARRIER[0].wait(60)
    ledger = opened(database)
    try:
        return sum(ledger.counts().values())
    finally:
        ledger.close()


def test_the_migrated_database_has_exactly_the_tables_of_the_code(empty_database: Database) -> None:
    opened(empty_database).close()
    engine = open_engine(empty_database.settings.database_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_what_0001_held_is_one_part_with_all_groups(empty_database: Database) -> None:
    fill_0001(empty_database)
    ledger = opened(empty_database)
    job = ledger.job("aaaa1111")
    [build] = ledger.builds(job.id)
    results = ledger.results(job.id)
    ledger.close()
    assert (job.status, job.done, job.total) == (Status.SUCCEEDED, 2, 2)
    assert job.options == BuildOptions(("sm_80", "sm_90"), code_limit_bytes=5_000_000)
    assert build.spec == Conv2d(3, 8, 9, 10, 3, 3, stride=(1, 2), padding=(1, 0, 1, 2))
    assert (build.id, build.tiling, build.parts) == (7, TILING, (Part(0, 3),))  # 10 kernels, 4 in a group
    assert (build.residual, build.gate, build.rows, build.folded) == ("", "", 1, ())
    assert [(result.build, result.arch, result.part, result.registers) for result in results] == [
        (7, "sm_80", 0, 40),
        (7, "sm_90", 0, 40),
    ]


def test_results_of_other_parts_fit_beside_those_of_0001(empty_database: Database) -> None:
    fill_0001(empty_database)
    ledger = opened(empty_database)
    [first, _] = ledger.results("aaaa1111")
    ledger.record_results([replace(first, part=1)])
    assert [(result.arch, result.part) for result in ledger.results("aaaa1111")] == [
        ("sm_80", 0),
        ("sm_80", 1),
        ("sm_90", 0),
    ]
    ledger.close()


def test_what_0001_knew_of_nvcc_is_one_run_of_it(empty_database: Database) -> None:
    fill_0001(empty_database)
    ledger = opened(empty_database)
    found = ledger.statistics.read(all_time=True).template
    ledger.close()
    assert (found.misses, found.hits, found.spent_seconds) == (1, 0, 0.5)  # of two results with the same time


def test_a_migrated_database_keeps_its_references_and_indexes(empty_database: Database) -> None:
    fill_0001(empty_database)
    empty_database.upgrade()
    migrated = shape_of(empty_database)
    migrate(empty_database, "base")
    empty_database.upgrade()
    assert migrated == shape_of(empty_database)


def test_down_to_the_base_no_table_is_left(empty_database: Database) -> None:
    fill_0001(empty_database)
    empty_database.upgrade()
    migrate(empty_database, "base")
    engine = open_engine(empty_database.settings.database_url)
    assert inspect(engine).get_table_names() == ["alembic_version"]
    engine.dispose()


def shape_of(database: Database) -> dict[str, Any]:
    """References and indexes of every table, with their columns."""
    engine = open_engine(database.settings.database_url)
    found = inspect(engine)
    shape = {
        table: (found.get_foreign_keys(table), found.get_indexes(table), found.get_pk_constraint(table))
        for table in sorted(metadata.tables)
    }
    engine.dispose()
    assert shape["results"][0]
    return shape


def test_down_again_everything_is_as_it_was(empty_database: Database) -> None:
    fill_0001(empty_database)
    before = rows_in(empty_database)
    migrate(empty_database, "0002")
    migrate(empty_database, "0001")
    assert rows_in(empty_database) == before


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (Conv2d(3, 8, 8, 8, 3, 3), (Part(0, 1), Part(1, 2))),
        (Conv2d(3, 8, 8, 8, 3, 3, dilation=(2, 2)), (Part(0, 2),)),
        (Linear(12, 8), (Part(0, 2),)),
    ],
)
def test_down_again_jobs_that_0001_would_misread_are_gone_and_no_others(
    spec: Conv2d | Linear, parts: tuple[Part, ...], empty_database: Database
) -> None:
    fill_0001(empty_database)
    before = rows_in(empty_database)
    ledger = opened(empty_database)
    [old] = ledger.builds("aaaa1111")
    new = replace(old, spec=spec, parts=parts)
    job = NewJob("bbbb2222", "new", "/models/new.onnx", "01" * 32, "23" * 32, BuildOptions(("sm_90",)), (new,))
    ledger.record_submission(NewSubmission("s2", "ada", (job,)))
    [build] = ledger.builds("bbbb2222")
    ledger.record_results([BuildResult(build.id, "sm_90", 0, Outcome.BUILT, "11" * 32, "22" * 32)])
    ledger.add_event("bbbb2222", "info", "planned")
    ledger.close()
    migrate(empty_database, "0001")
    found = rows_in(empty_database)
    assert len(found.pop("submissions")) == 2
    assert found == {table: rows for table, rows in before.items() if table != "submissions"}


def test_down_again_jobs_with_several_tilings_of_a_layer_are_gone_and_no_others(empty_database: Database) -> None:
    fill_0001(empty_database)
    ledger = opened(empty_database)
    [old] = ledger.builds("aaaa1111")
    tuned = replace(old, choices=(TilingChoice("sm_90", "NVIDIA Made-Up"),))
    others = replace(old, tiling=replace(TILING, stages=3), choices=(TilingChoice("sm_80"),))
    options = BuildOptions(("sm_90",), tuning=False)
    both = replace(options, archs=("sm_80", "sm_90"))
    jobs = (
        NewJob("bbbb2222", "two tilings", "/models/new.onnx", "01" * 32, "23" * 32, both, (tuned, others)),
        NewJob("cccc3333", "plain", "/models/new.onnx", "01" * 32, "45" * 32, options, (old,)),
        NewJob("dddd4444", "one record", "/models/new.onnx", "01" * 32, "67" * 32, options, (tuned,)),
    )
    ledger.record_submission(NewSubmission("s2", "ada", jobs))
    ledger.tuning.put(record(TILING))
    ledger.close()
    migrate(empty_database, "0003")
    empty_database.upgrade()
    ledger = empty_database.open()
    assert {each.id for each in ledger.jobs()} == {"aaaa1111", "cccc3333", "dddd4444"}
    assert ledger.job("cccc3333").options == BuildOptions(("sm_90",))
    assert ledger.tuning.records() == []
    ledger.close()


def test_a_database_is_migrated_once(empty_database: Database) -> None:
    assert database_revision(empty_database.settings) == (None, HEAD)
    empty_database.upgrade()
    assert database_revision(empty_database.settings) == (HEAD, HEAD)
    empty_database.upgrade()
    empty_database.open().close()


def test_four_processes_may_migrate_a_fresh_database_at_once(empty_database: Database) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4, initializer=will_meet, initargs=(context.Barrier(4),)) as pool:
        assert pool.map(upgrade_and_count, [empty_database] * 4, chunksize=1) == [0] * 4


def test_a_database_of_a_newer_program_is_refused_in_words(empty_database: Database) -> None:
    empty_database.upgrade()
    execute(empty_database, "update alembic_version set version_num = '9999'")
    for attempt in (empty_database.open, empty_database.upgrade):
        with pytest.raises(LedgerError, match=r"revision 9999.*the version of farm that made it"):
            attempt()


def test_a_migration_that_fails_leaves_the_database_as_it_was(empty_database: Database) -> None:
    if empty_database.kind == "sqlite":
        Path(empty_database.settings.database_url.removeprefix("sqlite:///")).parent.mkdir()
    execute(empty_database, "create table results (mine text)")  # the last table that the first migration makes
    with pytest.raises(LedgerError, match=r'results"? already exists'):
        empty_database.upgrade()
    engine = open_engine(empty_database.settings.database_url)
    assert inspect(engine).get_table_names() == ["results"]
    engine.dispose()
