"""ONNX exports compute what the model computes: on every cut and beside it, with missing, unseen and invalid values."""

import json
import os
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import exported
import trueup as tu
from trueup.data.table import Feature
from trueup.errors import ArgumentError
from trueup.exports import ensembles
from trueup.exports import onnx as target
from trueup.exports.certificate import certify, check_rows
from trueup.exports.lower import lower
from trueup.exports.onnx import run_onnx, write_onnx
from trueup.exports.program import CodeTrees, Expression, apply, constant, evaluate_one, walk

try:
    import onnx
    import onnxruntime
except ImportError as error:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{error}; no test may be skipped in CI", pytrace=False)
    pytest.skip(f"{error}: pip install 'trueup[onnx]'", allow_module_level=True)

TREES = ["mcgrad_trees", "mcgrad_rounds", "lsboost", "regression", "mcgrad_classes"]


def beside(cuts):
    return np.concatenate([cuts, np.nextafter(cuts, -np.inf), np.nextafter(cuts, np.inf)])


def predict(model, data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.predict(data, on_error="nan").reshape(len(data[model.schema.prediction[0]]), -1)


def run(data, columns, level=None, threads=0):
    """Run a model as a user would, with an optimisation level and a number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if level is not None:
        options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feed = {}
    for entry in session.get_inputs():
        values = columns[entry.name]
        texts = entry.type == "tensor(string)"
        feed[entry.name] = np.array(["" if value is None else value for value in values], object) if texts else values
    return np.column_stack(session.run(None, feed))


def assert_same(name):
    """The scores of a model and of its export agree after the link, its sums to the bit, invalid rows are NaN."""
    model = exported.MODELS[name]()
    program = lower(model)
    runners = [partial(run_onnx, write_onnx(program, checks=checks)) for checks in (False, True)]
    certify(model, program, "onnx", "onnxruntime", runners)


@pytest.mark.parametrize("name", exported.MODELS)
def test_scores_and_sums_are_those_of_the_model(name):
    assert_same(name)


@pytest.mark.parametrize("name", TREES)
def test_trees_by_masks_compute_the_same(name, monkeypatch):
    monkeypatch.setattr(target, "MIN_MASKED", 1)
    assert_same(name)


@pytest.mark.parametrize("padding", [0, np.inf])
def test_tables_of_any_layout_compute_the_same(padding, monkeypatch):
    monkeypatch.setattr(target, "MAX_PADDING", padding)
    assert_same("mcgrad_default")


@pytest.mark.parametrize("name", ["mcgrad_default", "mcgrad_trees", "matrix", "grouped_isotonic"])
def test_neither_optimisers_nor_threads_nor_batches_change_a_bit(name):
    program = lower(exported.MODELS[name]())
    columns = check_rows(program, 500)
    data = write_onnx(program, checks=True)
    found = run_onnx(data, columns)
    levels = onnxruntime.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_ALL):
        for threads in (1, 3):
            np.testing.assert_array_equal(run(data, columns, level, threads), found)
    for part in (slice(0, 0), slice(5, 6), slice(6, 9), slice(9, 140)):
        alone = run_onnx(data, {column: values[part] for column, values in columns.items()})
        np.testing.assert_array_equal(alone, found[part])


@pytest.mark.parametrize("name", exported.MODELS)
def test_only_standard_operators_are_used(name):
    data = write_onnx(lower(exported.MODELS[name]()), checks=True)
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    assert {(own.domain, own.version) for own in model.opset_import} == {("", 18), ("ai.onnx.ml", 3)}
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx.ml"}
    kinds = {onnx.TensorProto.DOUBLE, onnx.TensorProto.STRING}
    assert {own.type.tensor_type.elem_type for own in (*model.graph.input, *model.graph.output)} <= kinds


def test_batches_of_a_run_are_put_together(monkeypatch):
    program = lower(exported.MODELS["mcgrad_default"]())
    columns, data = check_rows(program, 500), write_onnx(program, checks=True)
    whole = run_onnx(data, columns)
    monkeypatch.setattr(target, "BATCH_ROWS", 100)
    np.testing.assert_array_equal(run_onnx(data, columns), whole)


HOSTILE = ["", "p_trueup", "exact_0", "trueup/0", "a\"b'\n", "ünï 🙂", "x; DROP TABLE"]


@pytest.fixture(scope="module")
def hostile():
    """A fit whose columns have hostile names, and whose categories have hostile levels."""
    rng = np.random.default_rng(0)
    rows, levels = 3_000, np.array(["", "missing", 'quo"te', "new\nline", "\x00nul", "it's 🙂", "\\"], object)
    data = {name: rng.normal(size=rows) for name in HOSTILE}
    data["x; DROP TABLE"] = rng.choice(levels, rows)
    data["p"] = rng.beta(2, 3, rows)
    shift = 0.15 * (data["x; DROP TABLE"] == "") + 0.1 * (data[""] > 0) * (data["p_trueup"] < 0.5)
    data["y"] = (rng.random(rows) < data["p"] + shift).astype(float)
    fix = tu.MCGrad("p", [*HOSTILE, "p"], stopping=None, rounds=1, trees=20)
    return fix.fit(data, data["y"]).model_


def test_names_and_levels_may_be_anything(hostile):
    program = lower(hostile)
    assert "" in program.categories["x; DROP TABLE"]
    columns = check_rows(program, 500)
    data = write_onnx(program, checks=True)
    found, expected = run_onnx(data, columns), predict(hostile, columns)
    np.testing.assert_allclose(found[:, :1], expected, rtol=0, atol=4e-16)
    described = json.loads(onnxruntime.InferenceSession(data).get_modelmeta().custom_metadata_map["trueup"])
    inputs = {entry["column"]: entry for entry in described["inputs"]}
    assert set(inputs) == {*HOSTILE, "p"}
    assert inputs[""]["name"] == "column"
    assert {name for name, entry in inputs.items() if entry["name"] != name} == {""}
    assert described["outputs"] == ["p_trueup_"]
    assert described["checks"] == ["exact_0_"]
    assert inputs["x; DROP TABLE"]["missing"] == "missing_"


def test_missing_categories_are_texts_that_are_no_levels():
    for levels, marker in ((("a", "b"), ""), (("", "b"), "missing"), (("", "missing", "missing_"), "missing__")):
        assert target._missing_marker(Feature("c", "categorical", levels)) == marker
    assert target._missing_marker(Feature("c", "categorical", ("a", "other"), unseen_level=True)) == "<missing>"


def test_a_prediction_may_be_a_feature(hostile):
    names = [entry.name for entry in onnx.load_from_string(write_onnx(lower(hostile))).graph.input]
    assert len(names) == len(set(names)) == 8


def test_dates_are_days():
    rng = np.random.default_rng(0)
    days = rng.integers(18_000, 20_000, 2_000)
    data = {"p": rng.beta(2, 3, 2_000), "day": days.astype("datetime64[D]")}
    y = (rng.random(2_000) < data["p"] + 0.2 * (days > 19_000)).astype(float)
    model = tu.MCGrad("p", ["day"], stopping=None, rounds=1, trees=5).fit(data, y).model_
    data["day"][:9], exported_model = np.datetime64("NaT"), write_onnx(lower(model))
    for given in (data["day"], np.where(np.arange(2_000) < 9, np.nan, days)):
        found = run_onnx(exported_model, data | {"day": given})
        np.testing.assert_allclose(found[:, 0], model.predict(data), rtol=0, atol=4e-16)


def test_what_onnx_cannot_hold_is_refused():
    program = lower(exported.MODELS["mcgrad_tables"]())
    country, *others = program.schema.features
    broken = replace(country, levels=("\ud800", *country.levels[1:]))
    with pytest.raises(ArgumentError, match="a level that is no valid text"):
        write_onnx(replace(program, schema=replace(program.schema, features=(broken, *others))))
    twice = replace(country, name="p")
    with pytest.raises(ArgumentError, match="a prediction and a feature of another kind"):
        write_onnx(replace(program, schema=replace(program.schema, features=(twice, *others))))


def fitted(attributes, x):
    """Run an ensemble alone."""
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    tensors = {name: attributes.pop(name) for name in ("nodes_values", "target_weights")}
    for name, values in tensors.items():
        wide = x.dtype == np.float64
        attributes[f"{name}_as_tensor" if wide else name] = onnx.numpy_helper.from_array(values, name) if wide else values
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    ends = (
        [helper.make_tensor_value_info("x", kind, None)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    graph = helper.make_graph([node], "ensemble", *ends)
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


def test_logarithms_and_exponentials_are_exact_to_the_last_place():
    program, x = lower(exported.MODELS["platt"]()), np.concatenate([-np.geomspace(1e-300, 700, 2_000), [0.0]])
    score = Expression("scores", "float", 1)
    wide = replace(program.schema, task="regression")  # any number is a score
    for result, given, expected in (
        (apply("exp", score), x, np.exp(x)),
        (apply("exp", -score), -x, np.exp(x)),
        (apply("log1p", score), np.exp(x), np.log1p(np.exp(x))),
        (apply("log", score), np.exp(x), np.log(np.exp(x))),
    ):
        alone = replace(program, schema=wide, result=result, valid=constant(np.array([True])), exact=())
        np.testing.assert_allclose(run_onnx(write_onnx(alone), {"p": given})[:, 0], expected, rtol=2.3e-16, atol=0)


@pytest.mark.parametrize("closed", ["left", "right"])
def test_cuts_are_counted(closed):
    lists = [
        np.zeros(0),
        np.array([0.0]),
        np.array([-5e-324, 0.0, 1.0]),
        np.sort(np.random.default_rng(0).normal(size=100)),
    ]
    values = np.concatenate([beside(own) for own in lists] + [[np.nan, np.inf, -np.inf, -0.0]])
    found = fitted(ensembles.counts([(own, closed) for own in lists]), np.column_stack([values] * 4))
    side = "left" if closed == "right" else "right"
    expected = [np.where(np.isnan(values), len(own) + 1, np.searchsorted(own, values, side)) for own in lists]
    np.testing.assert_array_equal(found, np.column_stack(expected))


def test_cuts_of_one_of_several_lists_are_counted():
    rng = np.random.default_rng(0)
    lists = [np.sort(rng.normal(size=size)) for size in (0, 1, 7, 30, 2)]
    x, which = rng.choice(beside(np.concatenate(lists)), 500), rng.integers(0, 5, 500)
    found = fitted(ensembles.counts_in(lists), np.column_stack([x, which.astype(float)]))
    assert found[:, 0].tolist() == [np.searchsorted(lists[own], value) for value, own in zip(x, which, strict=True)]


def test_positions_of_integers_are_found():
    values = np.array([0, 3, 4, 5, 9])
    found = fitted(ensembles.positions(values, 1), np.arange(-2.0, 12.0)[:, None])[:, 0]
    assert found.tolist() == [0, 0, 1, 0, 0, 2, 3, 4, 0, 0, 0, 5, 0, 0]


def random_trees(trees, leaves, columns=5, codes=9, seed=0):
    rng = np.random.default_rng(seed)
    left, right, root, made = [], [], [], 0
    for _ in range(trees):
        ends = [("root", 0)]
        for _ in range(leaves - 1):
            kind, place = ends.pop(rng.integers(len(ends)))
            if kind == "root":
                root.append(len(left))
            else:
                (left if kind == "left" else right)[place] = len(left)
            ends += [("left", len(left)), ("right", len(left))]
            left.append(0)
            right.append(0)
        for kind, place in ends:
            if kind == "root":
                root.append(~made)
            else:
                (left if kind == "left" else right)[place] = ~made
            made += 1
    nodes = len(left)
    members = tuple(
        frozenset(rng.choice(codes, rng.integers(1, codes), replace=False).tolist()) if rng.random() < 0.5 else None
        for _ in range(nodes)
    )
    whole = (np.array(own, np.int64) for own in (left, right, root))
    left, right, root = whole
    return CodeTrees(
        root, rng.integers(0, columns, nodes), rng.integers(0, codes - 2, nodes), np.full(nodes, codes - 1),
        rng.integers(0, 2, nodes), members, left, right, rng.normal(size=made),
    )  # fmt: skip


@pytest.mark.parametrize(("trees", "leaves"), [(1, 2), (1, 31), (2, 5), (7, 31), (8, 12)])
def test_masks_leave_one_leaf(trees, leaves):
    given = random_trees(trees, leaves)
    codes = np.random.default_rng(1).integers(0, 9, (400, 5))
    tables, values = ensembles.masks(given, [9] * 5)
    left = np.full((400, (trees + 1) // 2), 2**64 - 1, np.uint64)
    for columns, table in ensembles.joint(tables):
        place = np.zeros(400, np.int64)
        for column in columns:
            place = place * 9 + codes[:, column]
        left &= table[place]
    bits = np.column_stack([left & np.uint64(2**32 - 1), left >> np.uint64(32)])[:, :trees]
    assert (np.bitwise_count(bits) == 1).all()
    found = np.take_along_axis(values, (bits % ensembles.PRIME).astype(np.int64).T, axis=1).T
    np.testing.assert_array_equal(found, evaluate_one(walk_of(given), [codes], {}))


def walk_of(trees):
    return walk(trees, Expression("codes", "int", 5))


def test_trees_of_many_leaves_or_no_tests_have_no_masks():
    assert ensembles.masks(random_trees(2, 32), [9] * 5) is None
    assert ensembles.masks(random_trees(2, 1), [9] * 5) is None


def test_a_leaf_among_trees_is_masked():
    one, two = random_trees(1, 1), random_trees(1, 4)
    both = replace(two, root=np.array([~len(two.value), two.root[0]]), value=np.append(two.value, one.value))
    tables, values = ensembles.masks(both, [9] * 5)
    assert values[0, 1] == one.value[0]
    assert all((table[:, 0] & np.uint64(2**32 - 1) == 1).all() for table in [tables[min(tables)]])


def test_walks_number_the_leaves():
    given = random_trees(9, 40)
    codes = np.random.default_rng(1).integers(0, 9, (400, 5))
    attributes, sets, values = ensembles.walked(given, [9] * 5)
    own = [table[codes[:, column]] for column, table in zip(sets.columns, sets.tables, strict=True)]
    place = fitted(attributes, np.column_stack([codes, *own]).astype(np.float32)).astype(np.int64)
    found = np.take_along_axis(values, place.T, axis=1).T
    np.testing.assert_array_equal(found, evaluate_one(walk_of(given), [codes], {}))
