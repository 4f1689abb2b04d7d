"""Algorithm 1 on the two surfaces of Globus-Harris et al. (2023, section 7 and appendix F.2), and its error out of sample.

    python bench/surfaces.py [--rows 1000000] [--levels 500] [--only linear]

One million points, trees of depth 1 to 3 and linear functions (Figure 8), 500 level sets. Errors are against the true
surface on as many fresh points, in units where the surface spans 0 to 1. Pictures go to docs/pictures/. ``--only`` measures
one learner again and keeps the other figures.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup as tu
from common import PICTURES, RESULTS, save

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SIDE = 180  # pixels of one map
# Five colours of a scale that is also read in grey, dark to light.
COLOURS = np.array([[48, 18, 59], [70, 107, 227], [40, 187, 171], [164, 252, 60], [250, 231, 88]], float)


def cones(x: Floats, y: Floats) -> Floats:
    """C0: four paraboloids, one a quadrant."""
    return (np.abs(x) - 1) ** 2 + (np.abs(y) - 1) ** 2


def hills(x: Floats, y: Floats) -> Floats:
    """C1: a hilly terrain."""
    near = np.where(x <= 0, (x + 1) ** 2, (x - 1) ** 2)
    side = np.where(y >= 0, (y - 1) ** 2, (y + 1) ** 2)
    wave = 20 * x * y**2 * np.cos(8 * np.abs(x)) * np.sin(8 * y)
    return x + wave * ((1.5 * x + 4) * near / (y + 3) + side)


SURFACES = {"C0": (cones, 2.0), "C1": (hills, 1.0)}


def points(name: str, rows: int, seed: int) -> tuple[Floats, Floats]:
    surface, reach = SURFACES[name]
    X = np.random.default_rng([seed, 5]).uniform(-reach, reach, (rows, 2))
    return X, surface(X[:, 0], X[:, 1])


def png(path: Path, image: NDArray[np.uint8]) -> None:
    """Write an image (height, width, 3) as PNG."""
    height, width, _ = image.shape
    raw = b"".join(b"\x00" + row.tobytes() for row in image)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    )


def shade(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    at = np.clip((values - low) / (high - low), 0, 1) * (len(COLOURS) - 1)
    below = np.minimum(at.astype(int), len(COLOURS) - 2)
    part = (at - below)[..., None]
    return np.round(COLOURS[below] * (1 - part) + COLOURS[below + 1] * part).astype(np.uint8)


def picture(name: str, fix: Any, low: float, high: float) -> list[int]:
    """Draw the maps of some rounds side by side, the true surface last; say which rounds they are."""
    surface, reach = SURFACES[name]
    axis = np.linspace(-reach, reach, SIDE)
    X = np.column_stack([grid.ravel() for grid in np.meshgrid(axis, axis[::-1])])
    last = fix.history_.chosen
    shown = sorted({min(at, last) for at in (1, 3, 8, 20, 60, last)})
    maps = [p for at, p in enumerate(fix.staged_predict(X)) if at in shown]
    maps.append(surface(X[:, 0], X[:, 1]))
    gap = np.full((SIDE, 6, 3), 255, np.uint8)
    tiles = [part for one in maps for part in (shade(one.reshape(SIDE, SIDE), low, high), gap)][:-1]
    png(PICTURES / f"lsboost-{name.lower()}.png", np.concatenate(tiles, axis=1))
    return shown


LEARNERS: dict[str, dict[str, Any]] = {f"depth {depth}": {"depth": depth} for depth in (1, 2, 3)}
LEARNERS["linear"] = {"learner": "linear"}


def run(name: str, rows: int, levels: int, most: int, only: str | None = None) -> dict[str, Any]:
    X, y = points(name, rows, 0)
    low, high = float(y.min()), float(y.max())
    unit = (high - low) ** 2
    found: dict[str, Any] = {"rows": rows, "levels": levels, "variance": float(np.var(y) / unit)}
    Z, z = points(name, rows, 1)
    for label, own in LEARNERS.items():
        if only not in (None, label):
            continue
        start = time.perf_counter()
        shape = {"levels": levels, "rounds": most, "bins": 255, "limits": (low, high)}
        fix = tu.LSBoost.as_published(**own, **shape).fit(X, y)
        took = time.perf_counter() - start
        errors = [float(np.mean((p - z) ** 2) / unit) for p in fix.staged_predict(Z)]
        found[label] = {
            "rounds": fix.history_.chosen, "seconds": took, "mse_out_of_sample": errors[-1],
            "mse_training": fix.history_.loss_after / unit, "share_explained": 1 - errors[-1] / found["variance"],
            "mse_by_round": {str(at): errors[at] for at in (1, 2, 5, 10, 20, 50, 100, 150) if at < len(errors)},
        }  # fmt: skip
        print(f"{name} {label}: {fix.history_.chosen} rounds, MSE out of sample {errors[-1]:.2e} "
              f"(variance {found['variance']:.3f}), {took:.1f} s", flush=True)  # fmt: skip
        if label == "depth 1":
            found["pictured_rounds"] = picture(name, fix, low, high)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--levels", type=int, default=500)
    parser.add_argument("--most", type=int, default=300)
    parser.add_argument("--only", choices=LEARNERS)
    arguments = parser.parse_args()
    found = {name: run(name, arguments.rows, arguments.levels, arguments.most, arguments.only) for name in SURFACES}
    if arguments.only:
        earlier = json.loads((RESULTS / "surfaces.json").read_text())
        found = {name: {**earlier[name], **cell} for name, cell in found.items()}
    save("surfaces", found)


if __name__ == "__main__":
    main()
