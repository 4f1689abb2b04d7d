"""The commands of `make evidence` are understood by their benchmarks, and every benchmark and figure of the page is among them."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
NO_BENCHMARKS = {"run", "cases", "evidence", "concepts", "screens", "kill"}  # they prepare data, draw, write pages, test


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
    measured = {path.stem for path in (BENCH / "results").glob("*.json")} - {
        "local-card",
        "run",
    }  # needs a GPU; times of make evidence
    assert measured == {bench.name for bench in benches}


def test_the_page_states_the_recorded_time_of_all_quick_versions(benches, monkeypatch, tmp_path):
    run = sys.modules["bench_run"]
    results = tmp_path / "bench" / "results"
    results.mkdir(parents=True)
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    monkeypatch.setattr(run, "HERE", tmp_path / "bench")
    monkeypatch.setattr(run, "run", lambda bench, full, folder: (True, 0))
    monkeypatch.setattr(run.subprocess, "run", lambda *arguments, **named: None)  # the page itself
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda process: {0, 1})
    clock = iter(range(0, 10**6, 30))  # begun, ended: 30 seconds per benchmark
    monkeypatch.setattr(run.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(run, "cpu_seconds", iter(range(0, 10**6, 45)).__next__)
    monkeypatch.setattr("sys.argv", ["run", "--only", "null"])
    run.main()
    assert not (tmp_path / "build" / "results").exists()  # not the time of all
    monkeypatch.setattr("sys.argv", ["run", "--record"])
    run.main()
    quick = [bench.name for bench in benches if bench.quick]
    kept = json.loads((results / "run.json").read_text())
    assert set(kept["benches"]) == set(quick)
    assert kept["seconds"] == 30 * len(quick)
    summary = load("evidence_summary")
    monkeypatch.setattr(sys.modules["pages"], "RESULTS", results)
    minutes = [f"{len(quick) * seconds / 60:.0f}" for seconds in (30, 45)]
    assert summary.quick_time() == f" (measured: {minutes[0]} minutes on 2 cores, {minutes[1]} CPU minutes)"
    (results / "run.json").unlink()
    assert summary.quick_time() == ""
    monkeypatch.setattr("sys.argv", ["run", "--record", "--only", "null"])
    with pytest.raises(SystemExit, match="--record keeps the time of all quick versions"):
        run.main()
