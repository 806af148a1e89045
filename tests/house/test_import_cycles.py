"""No module needs itself: neither when it is imported nor later, inside a function."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from tests.house.test_imports import ALL_IMPORTS
from tests.house.tree import PACKAGES, modules


def name_of(file: str) -> str:
    """farm.store for farm/store/__init__.py."""
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


MODULES = {name_of(file) for file in modules(*PACKAGES)}


def imported(name: str) -> str | None:
    """The module of this project that an import names, itself or by something in it."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def cycle(needs: dict[str, set[str]]) -> list[str]:
    """Modules each of which imports the next; none where there is no cycle."""
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def needs() -> dict[str, set[str]]:
    """The names that each module imports. A package is its __init__.py, which may gather the package's modules."""
    found: dict[str, set[str]] = {name: set() for name in MODULES}
    for each in ALL_IMPORTS:
        importer, target = name_of(each.file), imported(each.module)
        if target and target != importer:
            found[importer].add(target)
    return found


def test_no_module_imports_itself_through_others_lazy_imports_included() -> None:
    found = cycle(needs())
    assert not found, " -> ".join(found)


def test_an_import_inside_a_function_closes_a_cycle_too() -> None:
    together = needs()
    together["farm.executors.ray.gpu"].add("farm.executors")  # which imports it inside a function
    assert set(cycle(together)) == {"farm.executors.ray.gpu", "farm.executors"}
