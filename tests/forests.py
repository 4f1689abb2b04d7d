"""Random forests as arrays, and rows with everything a row may hold, for the tests of the tree kernels."""

from __future__ import annotations

import numpy as np

from trueup.kernels.trees import ARRAY_TYPES, Forest

GRID = np.array([-np.inf, -1.5, -1.0, 0.0, 0.0, 0.5, 0.5, 2.0, 1e300, np.inf])  # some twice: thresholds repeat


def make_forest(random, levels, outputs=1, trees=8, most=2, depth=3):
    """Make trees whose leaves test up to ``most`` features; ``levels`` is -1 for a number, predictions come last."""
    kinds = [*levels, *[-1] * outputs]
    parts = {name: [] for name in Forest.__dataclass_fields__}
    for tree in range(trees):
        chosen = random.choice(len(kinds), min(most, len(kinds)), replace=False)
        parts["output"].append(tree % outputs)
        parts["root"].append(_grow(random, parts, kinds, chosen, depth if random.random() > 0.1 else 0))
    return Forest(**{name: np.array(part, ARRAY_TYPES.get(name, np.int32)) for name, part in parts.items()})


def _grow(random, parts, kinds, chosen, depth):
    if depth == 0 or random.random() < 0.15:
        parts["value"].append(random.normal())
        return ~(len(parts["value"]) - 1)
    node, at = len(parts["feature"]), int(random.choice(chosen))
    words = random.integers(0, 2**32, random.integers(0, kinds[at] // 32 + 2)) if kinds[at] >= 0 else []
    own = {
        "feature": at, "threshold": 0.0 if kinds[at] >= 0 else random.choice(GRID), "left": 0, "right": 0,
        "missing_left": random.integers(2), "words_at": len(parts["words"]) if kinds[at] >= 0 else -1, "words_in": len(words),
    }  # fmt: skip
    for name, value in own.items():
        parts[name].append(value)
    parts["words"].extend(words)
    for side in ("left", "right"):
        parts[side][node] = _grow(random, parts, kinds, chosen, depth - 1)
    return node


def make_rows(random, levels, rows):
    """Make rows (features, rows): values on and between thresholds, infinite, missing; codes known, missing, beyond."""
    X = np.empty((len(levels), rows))
    for at, count in enumerate(levels):
        if count >= 0:
            X[at] = random.choice([*range(-1, count + 2), 31, 32, 63, 64, 2.0**31, 2.0**63, 1e300, np.inf, np.nan], rows)
        else:
            X[at] = random.choice([*GRID, np.nan, 0.25, -0.7, 1e301, 5e-324], rows)
    return X
