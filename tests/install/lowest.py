"""Print the lower bounds of the core dependencies in pyproject.toml as exact versions: numpy==1.26 ...

`make test-lowest` installs them.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def lower_bounds(text):
    """Return the requirements name>=version of a pyproject.toml as name==version."""
    found = []
    for requirement in tomllib.loads(text)["project"]["dependencies"]:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
        if match is None:
            raise ValueError(f"{requirement!r} is not of the form name>=version")
        found.append(f"{match[1]}=={match[2]}")
    return found


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in lower_bounds(PROJECT.read_text())))
