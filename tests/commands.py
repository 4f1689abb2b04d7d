"""Run the command line within a test."""

from __future__ import annotations

from trueup.cli import main

ROLES = ["--outcome", "outcome", "--prediction", "prediction"]


def run(capsys, *arguments):
    """Audit, and give the exit code and what was printed; never a traceback."""
    code = main(["audit", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err
