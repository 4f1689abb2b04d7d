"""Comparison of two audits of the same rows, of which one may have been computed in partitions."""

from __future__ import annotations

import numpy as np
import pytest


def assert_same_audit(one, other):
    """Compare findings, curves and summaries. Ranks may differ where two segments differ by rounding alone."""
    mine, theirs = one.to_frame(), other.to_frame()
    here, there = np.argsort(mine["segment"]), np.argsort(theirs["segment"])
    for name, column in mine.items():
        a, b = column[here], theirs[name][there]
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12, err_msg=name)
        else:
            np.testing.assert_array_equal(b, a, err_msg=name)
    rank = dict(zip(there.tolist(), here.tolist(), strict=True))
    assert {(problem.finding.segment, problem.folded) for problem in one.problems} == {
        (problem.finding.segment, problem.folded) for problem in other.problems
    }
    for number, curve in other.curves.items():
        same = one.curve(rank[number])
        for name in ("predicted", "observed", "low", "high", "rows", "weight") if same is not None else ():
            np.testing.assert_allclose(getattr(curve, name), getattr(same, name), rtol=1e-9, atol=1e-12)
    facts = ("clusters", "rows", "unlabelled", "weightless", "thin", "dropped", "tested", "rejected")
    assert [getattr(one, name) for name in facts] == [getattr(other, name) for name in facts]
    for name in ("global_sigma", "prevalence", "weight_ratio", "weight_spread"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=1e-9, nan_ok=True)
    assert one.summary.fingerprint == other.summary.fingerprint
    assert dict(other.summary.scores) == pytest.approx(dict(one.summary.scores), rel=1e-8, nan_ok=True)
    for part in ("histogram", "path"):
        for a, b in zip(getattr(one.summary, part), getattr(other.summary, part), strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-8, atol=1e-12)
