"""What does a plain install weigh? Build the wheel, install it into a fresh environment, add up each package's files.

    python bench/size.py [--keep]

The figures go to bench/results/size.json and from there into docs/dependencies.md; ``--keep`` writes the page from the
figures that are there. Sizes are those of files on disk, compiled modules (.pyc) included; a megabyte is 1,000,000 bytes.
pip and setuptools, which a fresh environment has anyway, do not count.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import QUICK, RESULTS, save

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "dependencies.md"
LIMIT = 750e6
# Runs in the fresh environment: every package's files, what asks for it, and the folder as a whole.
COUNT = """
import json, re, sysconfig
from importlib.metadata import distributions
from pathlib import Path

place = Path(sysconfig.get_paths()["purelib"])
found, counted = {}, set()
plain = lambda name: re.sub("[-_.]+", "-", name).lower()
for one in distributions():
    files = {Path(one.locate_file(file)).resolve() for file in one.files or ()}
    files = {file for file in files if file.is_file()} - counted
    counted |= files
    needs = [plain(re.match("[A-Za-z0-9._-]+", text)[0]) for text in one.requires or () if "extra ==" not in text]
    size = sum(file.stat().st_size for file in files)
    found[plain(one.metadata["Name"])] = {"version": one.version, "bytes": size, "needs": needs}
whole = sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and not file.is_symlink())
print(json.dumps({"packages": found, "bytes": whole}))
"""


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        wheels, place = Path(folder) / "wheels", Path(folder) / "environment"
        quiet = ["--quiet", "--disable-pip-version-check"]
        build = [sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", "--wheel-dir", str(wheels), str(ROOT)]
        subprocess.run(build, check=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        python = str(place / "bin" / "python")
        (wheel,) = wheels.glob("*.whl")
        subprocess.run([python, "-m", "pip", "install", *quiet, str(wheel)], check=True)
        done = subprocess.run([python, "-c", COUNT], check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(done.stdout)
        wheel_bytes = wheel.stat().st_size
    ours = {name: one for name, one in found["packages"].items() if name not in ("pip", "setuptools")}
    bare = sum(one["bytes"] for name, one in found["packages"].items() if name in ("pip", "setuptools"))
    return {"wheel": wheel_bytes, "bytes": found["bytes"] - bare, "limit": LIMIT, "packages": ours}


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f}" if size >= 9.95e6 else f"{size / 1e6:.1f}"


def figures() -> dict[str, Any]:
    """Give the figures that were measured last."""
    found: dict[str, Any] = json.loads((RESULTS / "size.json").read_text())
    return found


def page(text: str, found: dict[str, Any]) -> str:
    """Put the figures into the page: the second cell of a package's row, and the sum in bold."""
    for name, one in found["packages"].items():
        row = re.compile(rf"^(\| {re.escape(name)} \| )[^|]*( \|)", re.MULTILINE)
        if len(row.findall(text)) != 1:
            raise SystemExit(f"docs/dependencies.md must have one row for {name}: add its reason")
        text = row.sub(rf"\g<1>{megabytes(one['bytes'])}\g<2>", text)
    return re.sub(r"\*\*[\d.]+ MB\*\*", f"**{megabytes(found['bytes'])} MB**", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="take the figures that are there")
    if parser.parse_args().keep:
        found = figures()
    else:
        found = measure()
        save("size", found)
    for name, one in sorted(found["packages"].items(), key=lambda pair: -pair[1]["bytes"]):
        print(f"{name:20} {one['version']:12} {megabytes(one['bytes']):>7} MB")
    print(f"{'together':33} {megabytes(found['bytes']):>7} MB of {megabytes(found['limit'])} MB allowed")
    if not QUICK:
        PAGE.write_text(page(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
