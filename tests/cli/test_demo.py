"""`trueup demo`: audit, correct, audit again."""

from __future__ import annotations

import contextlib
import io
import re

import pytest

import trueup as tu
from trueup.cli import demo, main
from trueup.cli.demo import BY


def run(capsys, *arguments):
    code = main(["demo", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory):
    """Run the demonstration with its defaults; return its directory, exit code, standard output and standard error."""
    directory, out, err = tmp_path_factory.mktemp("demo"), io.StringIO(), io.StringIO()
    with contextlib.chdir(directory), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["demo"])
    return directory, code, out.getvalue(), err.getvalue()


def test_the_demo_prints_both_verdicts_and_writes_page_and_model(demonstration):
    directory, code, out, err = demonstration
    assert (code, err) == (0, "")
    assert len(re.findall(r"[\d,]+ segments (?:tested )?at 5% \(Holm\)", out)) == 2
    assert re.search(r"a line \(score test: p = \S+\) and 1 round: held-out loss", out)
    assert "\nwrote trueup-demo.trueup (" in out
    assert out.endswith("\nwrote trueup-demo.html: open it in a browser\n")
    page = (directory / "trueup-demo.html").read_text(encoding="utf-8")
    assert "after MCGrad" in page
    assert "region=harbour" in page
    assert tu.load(directory / "trueup-demo.trueup").info().features == BY


def test_the_demo_prints_each_step_before_the_next_one_starts(tmp_path, monkeypatch, capsys):
    printed = []

    def audit(*arguments, **settings):
        printed.append(capsys.readouterr().out)
        return tu.audit(*arguments, **settings)

    monkeypatch.setattr(demo, "audit", audit)
    _, out, _ = run(capsys, "--rows", "1000", "--output", str(tmp_path / "page.html"))
    assert printed[0].startswith("1,000 simulated loans.")
    assert printed[1].startswith("\naudit: the original scores of 500 loans\n")
    assert "\n\nfit: MCGrad, on the other 500 loans\n" in printed[1]
    assert out.startswith("\naudit: the corrected scores of the loans audited before\n")


def test_the_demo_counts_miscalibrated_segments_before_and_after(demonstration):
    out = demonstration[2]
    was, now = map(int, re.search(r"significantly miscalibrated segments +(\d+) +(\d+)", out).groups())
    assert [was, now] == [int(re.search(r": (\d+) of [\d,]+ segments", out)[1]), 0]
    assert "no miscalibration found: " in out
    assert now < was
    before, after, truth = map(float, re.search(r"log loss +([\d.]+) +([\d.]+) +([\d.]+)", out).groups())
    assert truth < after < before


def test_the_first_verdict_is_that_of_the_second_half(tmp_path, capsys):
    _, out, _ = run(capsys, "--rows", "4000", "--seed", "3", "--output", str(tmp_path / "page.html"))
    half = {name: column[2000:] for name, column in tu.simulate.lending(4000, 3).items()}
    assert tu.audit(half, outcome="outcome", prediction="prediction", by=BY).verdict in out


def test_a_small_demo_reports_that_nothing_was_found(tmp_path, capsys):
    code, out, _ = run(capsys, "--rows", "1000", "--output", str(tmp_path / "page.html"))
    assert code == 0
    assert "no segment is significantly miscalibrated: so few rows reveal only large errors" in out
    assert "still miscalibrated" not in out


def test_the_seed_fixes_the_page(tmp_path, capsys):
    pages = []
    for seed in ("1", "1", "2"):
        run(capsys, "--rows", "1000", "--seed", seed, "--output", str(tmp_path / "page.html"))
        pages.append((tmp_path / "page.html").read_bytes())
    assert pages[0] == pages[1] != pages[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "10"], "--rows must be an integer at least 1,000; got 10"),
        (["--seed", "-1"], "--seed must be an integer at least 0; got -1"),
        (["--output", "no/page.html"], "there is no directory no"),
        (["--output", "."], "it is a directory"),
    ],
)
def test_invalid_arguments_exit_with_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []
