"""Check the wheels in a directory: both have the same files, and trueup-score works in an environment with NumPy alone.

Run by ``make dist``: ``python tests/install/check_dist.py dist``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
SCORE = """
import json, sys
from pathlib import Path
import numpy as np
import trueup as tu

files = sorted(Path(sys.argv[1]).rglob("*.trueup"))
for path in files:
    golden = json.loads(path.with_suffix(".json").read_text())
    if "day" in golden["rows"]:
        golden["rows"]["day"] = np.array(golden["rows"]["day"], "datetime64[D]")
    np.testing.assert_allclose(tu.load(path).predict(golden["rows"]), golden["expected"], rtol=0, atol=1e-6, err_msg=path.name)
try:
    tu.audit
except tu.errors.MissingPackageError as error:
    print(f"{len(files)} golden files scored by {tu.__version__}; {error.message}")
"""


def digests(wheel: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


def main(directory: Path) -> None:
    """Check both wheels in a directory."""
    full, score = (next(directory.glob(f"{name}-*.whl")) for name in ("trueup", "trueup_score"))
    if digests(full) != digests(score) or full.name.split("-")[1] != score.name.split("-")[1]:
        sys.exit(f"{full.name} and {score.name} differ in files or version: installed together, one would break the other")
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = str(Path(place, "bin", "python"))
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, str(score)], check=True)
        subprocess.run([python, "-W", "error", "-c", SCORE, str(GOLDEN)], check=True, cwd=place)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
