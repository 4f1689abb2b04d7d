"""Models that mcgrad 0.1.5 saved (tests/golden/mcgrad_files, made by bench/peers/mcgrad_models.py) predict the same here."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from forged import STRANGE, changed, places, refused, store, usable
from trueup import storage
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.mcgrad.lightgbm_text import parse_booster
from trueup.calibrators.model import FileContentError
from trueup.errors import ArgumentError, FileError, ImportedModelWarning, TrueupError, UnseenWarning
from trueup.modelfile import KIND, MANIFEST

FILES = {path.stem: path for path in sorted((Path(__file__).parents[1] / "golden" / "mcgrad_files").glob("*.json"))}
TOLERANCE = 1e-12


def _stored(name):
    """Return the text of the model in a file, its rows as a dict of arrays, and mcgrad's scores."""
    content = json.loads(FILES[name].read_text())
    rows = {
        key: np.array([float(v) if isinstance(v, str) and v.lstrip("-") == "inf" else v for v in values], object)
        for key, values in content["rows"].items()
    }
    return content["model"], rows, np.array([np.nan if score is None else score for score in content["scores"]])


@pytest.fixture(scope="module")
def binary():
    return _stored("binary")


def _load(text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportedModelWarning)
        return tu.load_mcgrad(text, **{"prediction": "p", **options})


@pytest.mark.parametrize("name", FILES)
def test_scores_are_those_of_mcgrad(name):
    text, rows, scores = _stored(name)
    model = _load(text)
    assert isinstance(model.map, Cascade)
    assert model.map.steps == len(json.loads(text)["mcgrad"]) == model.history.chosen
    np.testing.assert_allclose(model.predict(rows), scores, rtol=0, atol=TOLERANCE)
    one = [model.predict_one({key: column[at] for key, column in rows.items()}) for at in range(len(scores))]
    assert one == model.predict(rows).tolist()


@pytest.mark.parametrize("name", FILES)
def test_saved_imports_predict_the_same_to_the_bit(name):
    text, rows, _ = _stored(name)
    model, buffer = _load(text), io.BytesIO()
    tu.save(model, buffer)
    again = tu.load(buffer.getvalue())
    assert again.predict(rows).tolist() == model.predict(rows).tolist()
    assert again.schema == model.schema
    assert repr(again.history) == repr(model.history)


@pytest.mark.parametrize("name", FILES)
def test_explanations_add_up(name):
    text, rows, scores = _stored(name)
    model = _load(text)
    for at in range(0, len(scores), 7):
        explained = model.explain({key: column[at] for key, column in rows.items()})
        assert sum(effect.change for effect in explained.effects) == pytest.approx(scores[at] - rows["p"][at], abs=1e-9)


def test_missing_and_unseen_categories_differ_where_they_do_in_mcgrad(binary):
    text, rows, _ = binary
    model = _load(text)
    assert [feature.unseen_level for feature in model.schema.features] == [True, False, False, False, False]
    row = {key: column[30] for key, column in rows.items()}
    missing, unseen, label = (model.predict_one(row | {"region": value}) for value in (None, "Mars", "(unseen)"))
    assert missing != unseen == label
    explained = repr(model.explain(row | {"region": "Mars"}, details=True))
    assert "region=(unseen)" in explained


def test_columns_are_those_of_the_file(binary):
    model = _load(binary[0])
    kinds = [(feature.name, feature.kind) for feature in model.schema.features]
    assert kinds == [("region", "categorical"), ("new", "categorical"), ("branch", "categorical"),
                     ("age", "numeric"), ("income", "numeric")]  # fmt: skip
    levels = [feature.levels for feature in model.schema.features[:3]]
    assert levels == [("east", "q'uo\"te", "two\nlines ü", "west", "(unseen)"), ("false", "true"), tuple("012345678")]
    assert model.schema.prediction == ("p",)
    assert _load(_stored("regression")[0]).schema.task == "regression"


def test_scores_of_exactly_0_and_1_have_logits_as_in_mcgrad():
    """mcgrad adds 1e-304 to p and 1 - p: 1 has a logit of 700, which a factor of 0.05 moves to 35 and a leaf of -30 to 5."""
    text = _hand_made(leaves="-30 -30", factor=0.05)
    model = _load(text)
    logit = np.log(1e304)
    expected = [1 / (1 + np.exp(-0.05 * (sign * logit - 30))) for sign in (-1, 1)]
    np.testing.assert_allclose(model.predict({"p": [0.0, 1.0], "x": [0.0, 0.0]}), expected, rtol=1e-13)
    explained = model.explain({"p": 1.0, "x": 0.0})
    assert sum(effect.change for effect in explained.effects) == pytest.approx(expected[1] - 1.0, abs=1e-12)


def _hand_made(
    *, threshold="0.5", decision="2", leaves="-0.25 0.75", factor=1.0, objective="binary sigmoid:1", extra="", encoder=None,
    names=((), ("x",)), feature="0", tree="",
):  # fmt: skip
    block = tree or (
        f"Tree=0\nnum_leaves=2\nnum_cat=0\nsplit_feature={feature}\nthreshold={threshold}\ndecision_type={decision}\n"
        f"left_child=-1\nright_child=-2\nleaf_value={leaves}\n{extra}is_linear=0\nshrinkage=1\n\n\n"
    )
    columns = len(names[0]) + len(names[1])
    booster = (
        f"tree\nversion=v4\nnum_class=1\nnum_tree_per_iteration=1\nlabel_index=0\nmax_feature_idx={columns}\n"
        f"objective={objective}\ntree_sizes=1\n\n{block}end of trees\n"
    )
    return json.dumps(
        {
            "schema_version": 2, "mcgrad": [{"booster": booster, "unshrink_factor": factor}], "params": {},
            "has_encoder": encoder is not None, "encoder": encoder or "{}",
            "categorical_feature_names": list(names[0]), "numerical_feature_names": list(names[1]),
        }
    )  # fmt: skip


def test_a_tree_worked_by_hand():
    """x = 0.5 is at the threshold and goes left; logit(0.5) = 0, so the score is the logistic function of 2 x the leaf."""
    model = _load(_hand_made(factor=2.0))
    found = model.predict({"p": [0.5, 0.5], "x": [0.5, np.nextafter(0.5, 1)]})
    np.testing.assert_allclose(found, [1 / (1 + np.exp(0.5)), 1 / (1 + np.exp(-1.5))], rtol=1e-15)


@pytest.mark.parametrize(("threshold", "decision", "left"), [
    ("0.5", "2", True), ("0", "0", True), ("-0.5", "2", False),  # no missing values in training: as 0, whatever the default
    ("-0.5", "10", True), ("0.5", "8", False),  # missing values in training: the default side
])  # fmt: skip
def test_missing_numbers_follow_the_rule_of_lightgbm(threshold, decision, left):
    model = _load(_hand_made(threshold=threshold, decision=decision))
    assert model.predict_one({"p": 0.5, "x": None}) == model.predict_one({"p": 0.5, "x": -9.0 if left else 9.0})


@pytest.mark.parametrize(("changes", "message"), [
    ({"extra": "is_linear=1\n", "tree": ""}, "linear functions"),
    ({"decision": "6"}, "zeros as missing values"),
    ({"decision": "16"}, "unknown kind of decision"),
    ({"factor": 1e-10}, "the unshrink factor of round 1 is not between 1e-09 and 50: 1e-10"),
    ({"factor": 60}, "the unshrink factor of round 1"),
    ({"factor": -1.0}, "the unshrink factor of round 1"),
    ({"factor": "1"}, "the unshrink factor of round 1"),
    ({"objective": "poisson"}, "neither the objective binary"),
    ({"leaves": "1 2 3"}, "tree 0 of round 1 has an invalid leaf_value"),
    ({"leaves": "1 nan"}, "invalid leaf_value"),
    ({"leaves": "1 inf"}, "not finite"),
    ({"threshold": "nan"}, "invalid threshold"),
    ({"feature": "7"}, "a column that does not exist"),
    ({"feature": "-1"}, "a column that does not exist"),
    ({"decision": "1"}, "invalid cat_boundaries|names a set|invalid sets"),
    ({"decision": "1", "threshold": "0", "extra": "cat_boundaries=0 1\ncat_threshold=3\n"}, "a number, as a category"),
    ({"names": (("x",), ()), "encoder": "{0: {'a': 0}}"}, "tests a feature as the wrong type"),
    ({"names": (("x",), ("x",))}, "appears twice"),
    ({"names": (("p",), ())}, "cannot be the prediction"),
    ({"tree": "Tree=0\nnum_leaves=3\nsplit_feature=0 0\nthreshold=0 0\ndecision_type=2 2\nleft_child=0 -1\n"
              "right_child=1 -2\nleaf_value=1 2 3\n\n"}, "not made of trees|cycle"),
    ({"tree": "Tree=0\nnum_leaves=999999999999\nleaf_value=1\n\n"}, "invalid leaf_value"),
    ({"tree": "Tree=5\nnum_leaves=1\nleaf_value=1\n\n"}, "out of order"),
])  # fmt: skip
def test_models_that_trueup_cannot_have_are_refused_with_the_reason(changes, message):
    with pytest.raises(FileError, match=message) as caught:
        _load(_hand_made(**changes).replace("is_linear=1\\nis_linear=0", "is_linear=1"))
    assert caught.value.hint


CATEGORY_TREE = (
    "Tree=0\nnum_leaves=2\nnum_cat=1\nsplit_feature=0\nthreshold=0\ndecision_type=1\nleft_child=-1\nright_child=-2\n"
    "leaf_value=1 -1\ncat_boundaries=0 {words}\ncat_threshold={sets}\n\n"
)


def _categories(encoder, sets="1"):
    tree = CATEGORY_TREE.format(words=len(sets.split()), sets=sets)
    return _hand_made(tree=tree, names=(("c",), ()), encoder=encoder)


@pytest.mark.parametrize(("key", "value"), [
    ("'a'", "a"), ('"it\'s"', "it's"), (r"'\\\n\t\x00é\ud800'", "\\\n\t\x00é\ud800"), ("'nan'", "nan"), ("''", ""), ("'}, 1: {'", "}, 1: {"),
    ("3", 3), ("-3", -3), ("3.0", 3.0), ("0.1", 0.1), ("1e-07", 1e-07), ("1e+20", 1e20), ("True", True), ("False", False),
    ("9007199254740993", 9007199254740993),
])  # fmt: skip
def test_categories_of_python_read_as_they_do_in_a_frame(key, value):
    model = _load(_categories(f"{{0: {{{key}: 0}}}}"))
    known, other = (model.predict({"p": [0.5], "c": np.array([own], object)})[0] for own in (value, "Mars"))
    assert known == model.predict_one({"p": 0.5, "c": value}) == pytest.approx(1 / (1 + np.exp(-1.0)))
    assert other == pytest.approx(1 / (1 + np.exp(1.0)))


@pytest.mark.parametrize(("encoder", "message"), [
    ("{0: {(1, 2): 0}}", "no text, number or boolean"), ("{0: {Timestamp('2020-01-01'): 0}}", "no text, number or boolean"),
    ("{0: {'a': 0, 'a': 1}}", "two categories that read 'a'"), ("{0: {1: 0, 1.0: 1}}", "two categories that read '1'"),
    ("{0: {None: 0, nan: 1}}", "two categories"), ("{0: {True: 0, 2: 1}}", "mixes booleans with numbers"),
    ("{0: {'a': 1}}", "the codes of column 0 are invalid"), ("{0: {'a': -1}}", "no text, number or boolean"),
    ("{0: {'a': 0}, 1: {'b': 0}}", "other columns"), ("{1: {'a': 0}}", "no categories of column 0"), ("", "invalid"),
    ("{0: {'a': 0}", "other columns"), ("{0: {'a': 0", "no text, number or boolean"), ("{0: {'a\nb': 0}}", "invalid text"),
    ("{0: {inf: 0}}", "no text, number or boolean"), ("{0: {1e999: 0}}", "infinite"), ("{0: {b'a': 0}}", "no text, number or boolean"),
    ("{" * 100_000, "no categories of column 0"), ("{0: {__import__('os'): 0}}", "no text, number or boolean"),
])  # fmt: skip
def test_encoders_that_are_not_read_are_refused_with_the_reason(encoder, message):
    with pytest.raises(FileError, match=message):
        _load(_categories(encoder or "-"))


def test_a_level_of_unseen_values_has_a_name_of_its_own():
    model = _load(_categories("{0: {'(unseen)': 0, None: 1}}", sets="2"))
    assert model.schema.features[0].levels == ("(unseen)", "((unseen))")
    found = [model.predict_one({"p": 0.5, "c": value}) for value in (None, "(unseen)", "Mars")]
    assert found == pytest.approx([1 / (1 + np.exp(-1)), *[1 / (1 + np.exp(1))] * 2])


def test_sources_of_every_kind_are_read(binary, tmp_path):
    text, rows, _ = binary
    path = tmp_path / "model.json"
    path.write_text(text)
    expected = _load(text).predict(rows).tolist()
    for source in (path, str(path), text.encode(), io.StringIO(text), io.BytesIO(text.encode()), f"\n {text}"):
        assert _load(source).predict(rows).tolist() == expected


@pytest.mark.parametrize(("source", "error", "message"), [
    ("no/such/file", FileError, "cannot read no/such/file"), (b"\xff\xfe", FileError, "it is no text"), (b"[]", FileError, "not a model that"),
    (b"{}", FileError, "does not name its columns"), (b'{"schema_version": 3}', FileError, "schema version 3"),
    (b"{" * 100_000, FileError, "not a model"), (b"[" * 100_000, FileError, "not a model"), (b'{"mcgrad": NaN}', FileError, "the number NaN"),
    (7, ArgumentError, "from bytes or from a binary file object"),
])  # fmt: skip
def test_files_of_something_else_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        tu.load_mcgrad(source)


def test_the_prediction_is_the_name_of_a_column(binary):
    with pytest.raises(ArgumentError, match="prediction must be the name of a column"):
        tu.load_mcgrad(binary[0], prediction=["p"])
    assert tu.load_mcgrad(binary[0]).schema.prediction == ("prediction",)


def test_rows_that_mcgrad_does_not_score_are_warned_of(binary):
    content = json.loads(binary[0])
    content["params"]["allow_missing_segment_feature_values"] = False
    with pytest.warns(ImportedModelWarning, match="predicts NaN for rows with a missing feature"):
        tu.load_mcgrad(json.dumps(content))


def test_models_without_a_schema_version_or_rounds_are_read(binary):
    content = json.loads(binary[0])
    del content["schema_version"], content["params"]
    assert _load(json.dumps(content)).map.steps == 2
    content |= {"mcgrad": [], "params": {"lightgbm_params": {"objective": "regression"}}}
    model = _load(json.dumps(content))
    assert model.predict({**binary[1], "p": [5.0] * len(binary[2])}).tolist() == [5.0] * len(binary[2])


def test_changed_files_are_refused_or_harmless(binary):
    """Every value of the JSON replaced by values of every type."""
    text, rows, _ = binary
    content = json.loads(text)
    read = 0
    for place in places(content):
        for value in STRANGE if place else STRANGE[1:]:
            try:
                model = _load(json.dumps(changed(content, place, value)))
            except TrueupError:
                continue
            usable(model, rows)
            read += 1
    assert read > 50  # most parameters do not matter to scores


@pytest.mark.repeated(200, 600)
def test_damaged_trees_are_refused_or_harmless(binary, repetitions):
    """Lines of the text of the trees are cut, doubled, emptied or get another number, at random."""
    text, rows, _ = binary
    content, random = json.loads(text), np.random.default_rng(0)
    lines = content["mcgrad"][0]["booster"].split("end of trees")[0].split("\n")
    refused = 0
    for _ in range(repetitions):
        damaged = list(lines)
        at = int(random.integers(len(lines)))
        name, _, value = damaged[at].partition("=")
        numbers = value.split(" ")
        numbers[int(random.integers(len(numbers)))] = str(
            random.choice(["", "-1", "7", "99999999999", "1e308", "nan", "x", "0 0", "-2147483649"])
        )
        damaged[at] = str(
            random.choice(np.array(["", name, f"{name}={' '.join(numbers)}", f"{damaged[at]}\n{damaged[at]}"], object))
        )
        content["mcgrad"][0]["booster"] = "\n".join(damaged) + "end of trees\n"
        try:
            usable(_load(json.dumps(content)), rows)
        except FileError:
            refused += 1
    assert refused > repetitions / 3


def test_imported_models_say_where_they_are_from(binary):
    model = _load(binary[0])
    assert repr(model).startswith("mcgrad model without training rows, imported by trueup")
    assert "imported: not evaluated" in repr(model)
    assert repr(model.explain()) == "Explanation: the training rows are not known"
    assert repr(model.history) == "History: 2 rounds, as mcgrad kept them; its file states no losses"
    assert model.info().shrunken_gain is None
    assert model.about.parameters["mcgrad"]["lightgbm_params"]["num_leaves"] == 5


@pytest.mark.parametrize("value", ["yes", 1, None, []])
def test_a_saved_level_of_unseen_values_is_validated(binary, tmp_path, value):
    buffer, path = io.BytesIO(), tmp_path / "model.trueup"
    tu.save(_load(binary[0]), buffer)
    parts = storage.read(buffer.getvalue(), kind=KIND)
    for feature, flag in ((0, value), (3, True)):  # a number has no levels
        manifest = json.loads(parts[MANIFEST])
        manifest["schema"]["features"][feature]["unseen_level"] = flag
        store(path, {**parts, MANIFEST: json.dumps(manifest).encode()})
        refused(path, "the level of unseen values is invalid")


def test_files_without_such_a_level_do_not_state_it():
    buffer = io.BytesIO()
    tu.save(_load(_stored("codes")[0]), buffer)
    assert b"unseen_level" not in buffer.getvalue()


def test_a_column_that_was_always_missing_has_unseen_values_alone():
    model = _load(_categories("{0: {None: 0}}"))
    found = [model.predict_one({"p": 0.5, "c": value}) for value in (None, "Mars")]
    assert found == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])


def test_the_prediction_may_be_a_feature_as_well():
    model = _load(_hand_made(names=((), ("p",))))
    expected = [1 / (1 + np.exp(0.25)), 0.75 * np.exp(0.75) / (0.25 + 0.75 * np.exp(0.75))]  # odds times e^leaf
    np.testing.assert_allclose(model.predict({"p": [0.5, 0.75]}), expected, rtol=1e-14)


def test_codes_of_categories_have_a_bound():
    with pytest.raises(FileError, match="has categories above 4,194,303"):
        _load(_categories("{0: {'a': 0}}", sets=" ".join(["1"] * (1 + (1 << 17)))))


def test_the_code_of_the_guide_runs(binary, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clicks.json").write_text(binary[0])
    page = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()
    (code,) = re.findall(r"^```python\n([^`]*load_mcgrad.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {"tu": tu, "later": binary[1]}
    exec(code, names)
    np.testing.assert_allclose(names["scores"], binary[2], rtol=0, atol=TOLERANCE)
    assert tu.load("clicks.trueup").predict(binary[1]).tolist() == names["scores"].tolist()


def test_an_imported_model_has_no_losses_to_draw(binary):
    pytest.importorskip("matplotlib")
    with pytest.raises(ArgumentError, match="no losses to draw"):
        tu.figures.draw_history(_load(binary[0]))


def test_columns_without_a_known_value_are_warned_of(binary):
    text, rows, _ = binary
    many = {name: np.repeat(column[30:31], 100) for name, column in rows.items()}
    for column, treated in (("region", "alike"), ("branch", "as missing")):
        with pytest.warns(UnseenWarning, match=f"no value of column '{column}' is known.*all are treated {treated}"):
            _load(text).predict({**many, column: np.full(100, "Mars", object)})


def test_lightgbm_is_not_imported(tmp_path, binary):
    path = tmp_path / "model.json"
    path.write_text(binary[0])
    code = (
        "import sys, trueup as tu\n"
        f"tu.load_mcgrad({str(path)!r}, prediction='p').predict_one({{'p': .2, 'region': 'east', 'new': True, 'branch': 1, 'age': 1.0, 'income': 1.0}})\n"
        "assert not {'lightgbm', 'mcgrad', 'sklearn', 'pandas'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_text_of_other_columns_is_refused(binary):
    booster = json.loads(binary[0])["mcgrad"][0]["booster"]
    with pytest.raises(FileContentError, match="the trees has other columns than the model"):
        parse_booster(booster, 3, "the trees")
    assert len(parse_booster(booster, 6, "the trees").trees) == 4
