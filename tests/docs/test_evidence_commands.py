"""The commands of `make evidence` are understood by their benchmarks, and every benchmark and figure of the page is among them."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
NO_BENCHMARKS = {"run", "cases", "evidence", "concepts", "screens"}  # they prepare data, draw, and write pages


def load(name):
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def benches(monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    return load("run").BENCHES


class ParsedError(Exception):
    pass


def test_every_benchmark_understands_its_arguments(benches, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def stop_after_parsing(parser, *arguments, **named):
        parse(parser, *arguments, **named)
        raise ParsedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop_after_parsing)
    for bench in benches:
        commands = dict.fromkeys((*bench.quick, *bench.full))
        if "ArgumentParser" not in (BENCH / f"{bench.name}.py").read_text():
            assert list(commands) == [""], f"{bench.name} takes no arguments"
            continue
        module = load(bench.name)
        for arguments in commands:
            monkeypatch.setattr("sys.argv", [bench.name, *arguments.split()])
            with pytest.raises(ParsedError):
                module.main()


def test_every_benchmark_is_run(benches):
    scripts = {path.stem for path in BENCH.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert {bench.name for bench in benches} == scripts - NO_BENCHMARKS


def test_every_figure_of_the_page_has_a_benchmark(benches):
    measured = {path.stem for path in (BENCH / "results").glob("*.json")} - {"local-card"}  # needs a GPU
    assert measured == {bench.name for bench in benches}
