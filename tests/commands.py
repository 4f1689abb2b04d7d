"""Run the command line within a test."""

from __future__ import annotations

from trueup.cli import main

ROLES = ["--outcome", "outcome", "--prediction", "prediction"]


def run(capsys, *arguments):
    """Audit, and give the exit code and what was printed; never a traceback."""
    return call(capsys, "audit", *arguments)


def call(capsys, *arguments):
    """Run a command, and give the exit code and what was printed; never a traceback."""
    code = main([str(one) for one in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err
