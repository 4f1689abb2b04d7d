"""Rules about the code base that no linter checks."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "trueup"
MODULES = sorted(SOURCE.rglob("*.py"))
ROOT = SOURCE.parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Outside package -> the only places that may import it.
HOMES = {
    "narwhals": {"data/columns.py"},
    "duckdb": {"data/sql.py"},
    "numba": {"kernels"},
    "jinja2": {"reports"},
    "rich": {"cli"},
    "shtab": {"cli/completion.py"},
    "sklearn": {"calibrators"},
    "lightgbm": {"learners/lightgbm.py"},
    "matplotlib": {"reports"},
    "mlflow": {"mlflow.py"},
    "torch": {"kernels/laplace/cuda.py"},
    "pandas": {"cluster"},
    "polars": set(),
    "pyarrow": {"cluster"},
    "pyspark": {"cluster"},
    "py4j": {"cluster"},
    "dask": {"cluster"},
    "distributed": {"cluster"},
    "onnx": {"exports/onnx.py"},
    "onnxruntime": {"exports/onnx.py"},
}


def _name(path):
    return path.relative_to(SOURCE).as_posix()


@functools.cache
def _nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def _imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_outside_packages_are_imported_only_in_their_own_room(path):
    name = _name(path)
    for package in _imports(_nodes(path)):
        if package in HOMES:
            assert name in HOMES[package] or name.split("/")[0] in HOMES[package], f"{name} imports {package}"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_exceeds_700_lines(path):
    assert len(path.read_text().splitlines()) <= 700


def test_every_class_name_is_defined_once():
    homes = {}
    for path in MODULES:
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(_name(path))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_array_types_are_defined_once():
    aliases = [f"{_name(path)}: {line}" for path in MODULES if path.name != "_types.py"
               for line in path.read_text().splitlines() if re.fullmatch(r"\s*\w+ = NDArray\[.*\]", line)]  # fmt: skip
    assert aliases == []


@pytest.mark.parametrize("path", [*MODULES, *DOCS], ids=lambda path: path.name)
def test_plain_english(path):
    """STYLE: words of the field, not a private dialect."""
    text = path.read_text()
    assert sorted(set(re.findall(r"\b(told|nought|taught)\b", text, re.IGNORECASE))) == []
    if path.suffix == ".py":
        opening = re.compile(r"(Give|Say|Tell)s?\b")
        nodes = [n for n in _nodes(path) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Module))]
        assert [node.name for node in nodes if opening.match(ast.get_docstring(node) or "")] == []


def test_importing_trueup_takes_no_other_package():
    code = "import sys; before = set(sys.modules); import trueup; print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert loaded & {"numpy", "numba", "scipy", "narwhals", "duckdb", "jinja2", "rich"} == set()


def test_every_public_name_can_be_had():
    import trueup

    assert set(trueup.__all__) <= set(dir(trueup))
    for name in trueup.__all__:
        assert getattr(trueup, name) is not None
    assert trueup.__version__[0].isdigit()
    with pytest.raises(AttributeError, match="has no attribute 'adit'"):
        trueup.adit  # noqa: B018


@pytest.mark.parametrize("name", ["decisions", "errors", "figures", "metrics", "mlflow", "simulate"])
def test_public_modules_are_imported_by_their_names(name):
    import trueup

    module = importlib.import_module(f"trueup.{name}")
    assert getattr(trueup, name) is module
    assert all(hasattr(module, one) for one in module.__all__)


def test_the_evidence_page_shows_the_figures_that_were_measured(monkeypatch):
    bench = SOURCE.parents[1] / "bench"
    monkeypatch.syspath_prepend(bench)
    spec = importlib.util.spec_from_file_location("evidence", bench / "evidence.py")
    evidence = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(evidence)
    assert evidence.PAGE.read_text() == evidence.page()
    assert evidence.SIZING.read_text() == evidence.sizing_page()
