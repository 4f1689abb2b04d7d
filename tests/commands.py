"""Run the command line in tests."""

from __future__ import annotations

import signal
import subprocess
import sys

from trueup.cli import main

ROLES = ["--outcome", "outcome", "--prediction", "prediction"]


def run(capsys, *arguments):
    """Run an audit; return exit code, standard output and standard error."""
    return call(capsys, "audit", *arguments)


def call(capsys, *arguments):
    """Run a command; return exit code, standard output and standard error."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def interrupted(code: str, number: int = signal.SIGINT) -> tuple[int, str, str]:
    """Send a signal to a program once it prints "ready"; return exit code, standard output and standard error."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        return process.returncode, out, err
