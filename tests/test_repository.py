"""Rules that the repository keeps: the size of files, the direction of imports, and documents and pins that match the code."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "bayesprune"
MAX_LINES = 400

# What each room builds on directly; it may also import whatever those build on. A room that is not listed may not exist, so that a new
# one gets its place here and in ARCHITECTURE.md.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "text_table": set(),
    "noise": {"errors"},
    "distributions": set(),
    "gates": {"distributions", "noise"},
    "models": {"noise"},
    "data": {"noise"},
    "objective": {"gates"},
    "prediction": {"gates"},
    "uncertainty": {"prediction", "calibration", "text_table"},
    "calibration": {"errors", "text_table"},
    "analysis": {"gates", "prediction"},
    "example_inputs": {"errors"},
    "state": set(),
    "graph": {"gates", "prediction", "example_inputs", "state"},
    "removal": {"graph"},
    "attach": {"gates", "models", "graph", "removal", "text_table"},
    "narrowing": {"attach", "prediction", "text_table"},
    "cost": {"models", "prediction", "example_inputs", "state", "text_table"},
    "compact": {"attach", "cost"},
    "summary": {"compact"},
    "storage": {"errors"},
    "artifact": {"graph", "narrowing", "cost", "storage", "version"},
    "adaptive": {"compact", "artifact", "storage"},
    "benchmark": {"cost", "artifact", "adaptive", "version"},
    "training": {"data", "objective", "prediction", "narrowing", "cost", "storage", "version"},
    "experiments": {"training", "compact", "artifact", "adaptive", "benchmark", "analysis"},
    "report": {"experiments", "analysis"},
}
DOOR = "__init__"  # the public names: gathers from every room, and only the command line looks through it
COMMAND_LINE = {"cli", "__main__"}


def source_files():
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def allowed(room):
    if room == DOOR or room in COMMAND_LINE:
        return {*ROOMS, *COMMAND_LINE, DOOR}
    below = {room}
    for other in ROOMS[room]:
        below |= allowed(other)
    return below


def is_room(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def imported_rooms(path):
    """The rooms that a file imports from, with the line, wherever in the file the import stands."""
    module = ["bayesprune", *path.relative_to(PACKAGE).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = module[: -node.level] if node.level else []
            origin = [*origin, *(node.module or "").split(".")] if node.module else origin
            names = [[*origin, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "bayesprune":
                yield node.lineno, name[1] if len(name) > 1 and is_room(name[1]) else DOOR


def pinned_versions():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def declared_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    return [Requirement(line) for line in (*project["dependencies"], *extras)]


def test_rooms_form_no_circle():
    for room in ROOMS:
        assert all(room not in allowed(other) for other in ROOMS[room]), room


def test_every_room_has_a_place():
    unknown = {room_of(path) for path in source_files()} - {*ROOMS, *COMMAND_LINE, DOOR}
    assert not unknown, f"say in ROOMS of {Path(__file__).name} what these may import: {sorted(unknown)}"


def test_imports_never_point_back_up():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {room_of(path)} may not import {target}"
        for path in source_files()
        for line, target in imported_rooms(path)
        if target not in allowed(room_of(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_files_stay_short():
    long = {str(path.relative_to(ROOT)): count for path in source_files() if (count := path.read_bytes().count(b"\n")) > MAX_LINES}
    assert not long, f"over {MAX_LINES} lines: {long}"


def test_architecture_names_every_room():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = {room_of(path) for path in source_files()} - {DOOR, "__main__"}
    missing = {room for room in rooms if f"`{room}/`" not in text and f"`{room}.py`" not in text}
    assert not missing, f"ARCHITECTURE.md does not mention {sorted(missing)}"


@pytest.mark.parametrize("target", ["run", "test", "lint", "bench", "clean", "help"])
def test_makefile_has_target(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("command", ["make run", "make test"])
def test_readme_names_command(command):
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_calls_make_test():
    script = ROOT / ".ci" / "run"
    assert "make test" in script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)


def test_constraints_pin_every_declared_dependency():
    pinned = pinned_versions()
    for requirement in declared_requirements():
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement} does not admit {version} of constraints.txt"


def test_constraints_hold_for_any_build():
    local = {name for name, version in pinned_versions().items() if "+" in version}
    assert not local, f"a local version (such as +cpu) ties everybody to one build: {local}"
