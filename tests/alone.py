"""A process in which NumPy is the only package besides the standard library and trueup."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_alone"]

BLOCK = """
import sys

KNOWN = {*sys.stdlib_module_names, "numpy", "trueup", "__main__"}


class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in KNOWN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Nowhere())
"""


def run_alone(program, *arguments, **environment):
    """Run a program in a fresh process that has only NumPy; return the JSON that it prints."""
    source = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, **environment}
    command = [sys.executable, "-W", "error", "-c", BLOCK + program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
