"""Rows that test the SQL of a model, and what they must give."""

import warnings

import numpy as np

import trueup as tu
from trueup.data.frame import read_like
from trueup.exports.lower import lower

ROW = "trueup_row"
EXTREMES = [np.nan, np.inf, -np.inf, 1e300, -1e300, 0.0, -0.0, 5e-324]
INVALID = [np.nan, -0.1, 1.5, np.inf, -np.inf]
UNSEEN = ["unseen", "'; DROP TABLE scores; --", "", None]


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


def beside(cuts):
    """Return numbers, and the next floats on both sides."""
    return np.concatenate([cuts, np.nextafter(cuts, np.inf), np.nextafter(cuts, -np.inf)])


def rows(program, at_least=300, seed=0):
    """Return columns at and beside every cut, with missing, unseen, extreme and invalid values, in random combinations."""
    random, schema, special = np.random.default_rng(seed), program.schema, {}
    for feature in schema.features:
        if feature.kind == "categorical":
            special[feature.name] = np.array([*feature.levels, *UNSEEN], object)
        elif feature.kind == "numeric":
            special[feature.name] = np.concatenate([beside(program.number_cuts[feature.name]), EXTREMES])
        else:
            micros = np.round(program.number_cuts[feature.name] * 86_400e6).astype(np.int64)
            beside_cuts = np.concatenate([micros, micros + 1, micros - 1, [0, -1, 2**55]])
            special[feature.name] = np.append(beside_cuts.astype("datetime64[us]"), np.datetime64("NaT"))
    single = len(schema.prediction) == 1
    scale = 100.0 if schema.task == "regression" else 1.0
    for at, name in enumerate(schema.prediction):
        given = random.normal(0, 8, 40) if schema.logits else random.random(40) * scale
        cuts = beside(program.score_cuts[at])
        if not schema.logits and schema.task != "regression":
            cuts = cuts[(cuts >= 0) & (cuts <= 1)]
            cuts = np.concatenate([cuts, [0.0, 1.0, 5e-324, 1e-300, 1 - 2**-53, *(INVALID if single else ())]])
        special[name] = np.concatenate([given, cuts])
    count = max(at_least, *map(len, special.values()))
    columns = {}
    for name, values in special.items():
        more = values[random.integers(0, len(values), count - len(values))]
        columns[name] = random.permutation(np.concatenate([values, more]))
    if schema.task == "multiclass" and not schema.logits:
        first, second, third = schema.prediction
        columns[second] = (1 - columns[first]) * random.random(count)
        columns[third] = 1 - columns[first] - columns[second]
        columns[third][:2] += [0.5, np.nan]  # invalid
    return columns


def expected(model, columns):
    """Return the scores of the model, NaN for invalid ones, and the values that are the same in every target."""
    program = lower(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tu.errors.TrueupWarning)
        scores = model.predict(columns, on_error="nan").reshape(-1, program.result.width)
    share = 0.0 if model.schema.logits else 1 / scores.shape[1]
    invalid = np.isnan(scores[:, 0])
    given = {name: np.where(invalid, share, columns[name]) for name in model.schema.prediction}
    table = read_like(columns | given, model.schema)
    count, first = len(scores), int(hasattr(program, "unseen_code"))  # whether codes begin with that of missing values
    numbers = [table.columns[name] for name in program.numbers]
    codes = [table.columns[name].astype(np.int64) + first for name in program.categories]
    with np.errstate(all="ignore"):
        values = program.evaluate(
            np.column_stack(list(given.values())),
            np.column_stack([np.zeros((count, 0)), *numbers]),
            np.column_stack([np.zeros((count, 0), np.int64), *codes]),
        )
    exact = [np.broadcast_to(values[item], (count, item.width)) for item in program.exact]
    exact = np.concatenate([np.zeros((count, 0)), *exact], axis=1)
    return scores, np.where(invalid[:, None], np.nan, exact)


def assert_same(found, model, columns, tiny=0.0):
    """Compare what SQL returns for rows with the model; exact values may differ by ``tiny``."""
    scores, exact = expected(model, columns)
    width = scores.shape[1]
    np.testing.assert_array_equal(np.isnan(found[:, :width]), np.isnan(scores))
    np.testing.assert_allclose(found[:, :width], scores, rtol=0, atol=4e-16)
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
