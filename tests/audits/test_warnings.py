"""Warnings about the data that an audit issues are part of its result."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest

import trueup as tu
from trueup.errors import TrueupWarning, WarningRecord
from trueup.reports.summary import headline, lead, next_step

ROLES = {"outcome": "y", "prediction": "p"}


def make_rows(n=1800, seed=5):
    """Return calibrated rows of customers whose rows have the same outcome."""
    random = np.random.default_rng(seed)
    customer = np.repeat(np.arange(n // 6), 6)
    p = random.uniform(0.1, 0.6, n // 6)[customer]
    y = (random.random(n // 6)[customer] < p).astype(float)
    region = np.array(["north", "south"], object)[random.integers(0, 2, n // 6)[customer]]
    return {"y": y, "p": p, "region": region, "customer": customer}


def independent(n=2000, seed=0):
    """Return calibrated rows."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.1, 0.6, n)
    return {"y": (random.random(n) < p).astype(float), "p": p, "g": random.choice(["u", "v"], n).astype(object)}


def with_hard_scores():
    data = independent()
    return data | {"p": (data["p"] > 0.3).astype(float)}


def with_copy():
    data = independent()
    return data | {"late": data["y"] * 10 + np.random.default_rng(1).random(2000)}


CASES = {
    "ClusterWarning": (make_rows, {"by": ["region"]}, "rows with the same 'customer' are not independent", "customer"),
    "LeakageWarning": (with_copy, {}, "column 'late' (AUC 1) predicts the outcome almost perfectly", "late"),
    "ScoreColumnWarning": (
        lambda: independent() | {"other": independent()["p"] ** 1.1}, {}, "column 'other' looks like another score", "other",
    ),
    "HardPredictionWarning": (with_hard_scores, {}, "every prediction in column 'p' is 0 or 1", "p"),
    "OneClassWarning": (
        lambda: independent() | {"y": np.zeros(2000)}, {}, "every outcome in column 'y' is 0 (2,000 rows)", "y",
    ),
    "InfiniteValueWarning": (
        lambda: independent() | {"a": np.r_[-np.inf, np.arange(1998) % 30, np.inf], "b": np.r_[np.inf, np.ones(1999)]}, {},
        "2 columns have infinite values: 'a' (2), 'b' (1)", None,
    ),
    "SoftOutcomeWarning": (
        lambda: independent() | {"y": independent()["p"]}, {}, "2,000 of 2,000 outcomes in column 'y' are neither", "y",
    ),
}  # fmt: skip


def write_csv(path, data):
    rows = zip(*data.values(), strict=True)
    path.write_text("\n".join([",".join(data), *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("category", CASES)
def test_a_warning_is_a_note_of_the_result(category, in_memory, tmp_path):
    make, given, message, column = CASES[category]
    data = make()
    if not in_memory:
        write_csv(tmp_path / "rows.csv", data)
        data = tu.scan(tmp_path / "rows.csv")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        audit = tu.audit(data, **ROLES, **given)
    (shown,) = caught
    (record,) = audit.warnings
    assert (record.category, record.column) == (category, column)
    assert record.message.startswith(message)
    assert str(shown.message) == (f"{record.message}\nhint: {record.hint}" if record.hint else record.message)
    assert shown.category.__name__ == category
    assert shown.filename == __file__
    assert audit.notes[0] == str(record)
    assert str(record) in repr(audit)
    assert str(record).replace("'", "&#x27;").replace('"', "&quot;") in audit._repr_html_()
    plain = audit.to_dict()
    assert plain["warnings"] == [record._asdict()]
    assert plain["notes"] == list(audit.notes)
    assert pickle.loads(pickle.dumps(audit)).warnings == audit.warnings


def test_warnings_that_are_not_shown_are_notes_as_well():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrueupWarning)
        audit = tu.audit(make_rows(), **ROLES, by=["region"])
    assert [record.category for record in audit.warnings] == ["ClusterWarning"]


def test_rows_without_warnings_have_none():
    audit = tu.audit(independent(), **ROLES)
    assert audit.warnings == ()
    assert "P-values are too small" not in " ".join(lead(audit))


def audit_customers(by, **given):
    """Audit rows that are not independent, with an error that is found even so."""
    data = make_rows(6000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrueupWarning)
        return data, tu.audit(data | {"p": data["p"] * 0.5}, **ROLES, by=by, **given)


def test_findings_among_rows_that_are_not_independent_are_qualified():
    data, audit = audit_customers(["region"])
    assert audit.verdict.endswith("; p-values are too small: rows with the same customer are not independent")
    assert headline(audit).endswith(", if rows were independent")
    assert lead(audit)[0] == "P-values are too small: rows with the same customer are not independent."
    step = next_step(audit)
    assert step.steps == ('Audit again with cluster="customer": rows with the same customer are not independent.',)
    again = eval(step.code, {"trueup": tu, "data": data | {"p": data["p"] * 0.5}})
    assert again.clusters == 1000
    assert again.warnings == ()
    assert 'cluster="customer"' in next_step(again).code  # of the fit


def test_draws_of_independent_rows_are_not_recommended_with_clusters():
    data, audit = audit_customers(["region"], adjust="max")
    again = eval(next_step(audit).code, {"trueup": tu, "data": data | {"p": data["p"] * 0.5}})
    assert (again.clusters, again.settings.adjust) == (1000, "holm")


def test_a_column_of_clusters_among_the_segments_is_left_out_of_them():
    data, audit = audit_customers(["region", "customer"], depth=1)
    step = next_step(audit)
    assert "and leave that column out of the segments" in step.steps[0]
    again = eval(step.code, {"trueup": tu, "data": data | {"p": data["p"] * 0.5}})
    assert [feature.name for feature in again.schema.features] == ["region"]


def test_nothing_found_needs_no_clusters():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrueupWarning)
        audit = tu.audit(make_rows(600, 2), **ROLES, by=["region"], alpha=1e-6)
    assert audit.warnings
    assert not audit.miscalibrated
    assert "not independent" not in audit.verdict
    assert not next_step(audit).steps[0].startswith("Audit again with")


def test_too_few_clusters_are_a_matter_of_clusters():
    data = independent()
    audit = tu.audit(data | {"bank": np.arange(2000) % 4}, **ROLES, by=["g"], cluster="bank")
    assert next_step(audit).steps == (
        "Collect rows of more clusters. A segment needs 50 rows in 10 clusters of similar size to be tested.",
    )


def test_a_record_without_a_hint_is_its_message():
    assert str(WarningRecord("OneClassWarning", "every outcome is 0")) == "every outcome is 0"
