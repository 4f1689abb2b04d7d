"""Rows that test the SQL of a model, and what they must give."""

import warnings

import numpy as np

import trueup as tu
from trueup.data.columns import days_of
from trueup.errors import TrueupWarning
from trueup.exports.certificate import check_rows, exact_values, largest_allowed
from trueup.exports.lower import lower

ROW = "trueup_row"
HOSTILE = [
    "it's", 'quo"te', "back\\slash", "\\'; DROP TABLE x; --", "*/ --", "a;b", "line\nbreak", "tab\t\r", "ü 𝄞 \u2028", "`tick`", "${x}",
    "%s {0} {}", "$1 $$ ?", "", " ", "NULL", "nul\0byte", "\\", "'", "''", "\\u0041", "\x1a",
]  # fmt: skip


def hostile_model(columns=None):
    """Fit a correction of levels and columns whose names are SQL syntax."""
    random = np.random.default_rng(0)
    text, number, score = columns or ('le"vel; DROP TABLE "x" --', "v0 'n'\n*/", "k0 \\p`")
    data = {text: np.array(HOSTILE, object)[random.integers(0, len(HOSTILE), 3_000)], number: random.normal(size=3_000)}
    data[score] = random.beta(2, 2, 3_000)
    logit = np.log(data[score] / (1 - data[score])) + np.isin(data[text], HOSTILE[::2]) - (data[number] > 0)
    y = (random.random(3_000) < 1 / (1 + np.exp(-logit))).astype(float)
    return tu.MCGrad(score, [text, number], stopping=None, rounds=1, trees=10, min_rows=5).fit(data, y).model_


def dated_model():
    """Fit a correction of a date."""
    random = np.random.default_rng(0)
    day = np.datetime64("2024-01-01", "us") + random.integers(0, 366 * 86_400_000_000, 2_000).astype("timedelta64[us]")
    p = random.random(2_000)
    y = (random.random(2_000) < np.where(day > np.datetime64("2024-06-01"), p**2, p)).astype(float)
    return tu.MCGrad("p", ["day"], stopping=None, rounds=1, trees=10).fit({"p": p, "day": day}, y).model_


def rows(program, least=300):
    """Return columns at and beside every cut, with missing, unseen, extreme and invalid values, in random combinations."""
    return check_rows(program, least)


def expected(model, columns):
    """Return the scores of the model, NaN for invalid ones, and the values that are the same in every target."""
    program = lower(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrueupWarning)
        scores = model.predict(columns, on_error="nan").reshape(-1, program.result.width)
    given = {name: days_of(column) if column.dtype.kind == "M" else column for name, column in columns.items()}
    return scores, np.where(np.isnan(scores[:, :1]), np.nan, exact_values(program, given))


def assert_same(found, model, columns, tiny=0.0):
    """Compare what SQL returns for rows with the model; exact values may differ by ``tiny``."""
    scores, exact = expected(model, columns)
    width = scores.shape[1]
    np.testing.assert_array_equal(np.isnan(found[:, :width]), np.isnan(scores))
    np.testing.assert_allclose(found[:, :width], scores, rtol=0, atol=largest_allowed(lower(model)))
    np.testing.assert_allclose(found[:, width:], exact, rtol=0, atol=tiny)


def as_csv(columns):
    """Return rows with their number as CSV: NULL is empty, NaN is written, texts are quoted."""
    count = len(next(iter(columns.values())))
    rows = zip(range(count), *(column.tolist() for column in columns.values()), strict=True)
    return "".join(f"{','.join(map(_field, row))}\n" for row in rows)


def _field(value):
    if value is None:
        return ""
    return repr(value) if isinstance(value, (int, float)) else '"' + str(value).replace('"', '""') + '"'
