"""Run the command line within a test."""

from __future__ import annotations

import signal
import subprocess
import sys

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


def interrupted(code: str) -> tuple[int, str, str]:
    """Run a program that says when it is ready, interrupt it, and give its exit code and what it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, out, err
