"""What a served model counts, refuses and returns, and that saved bytes can be reproduced."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError, ColumnError, DataError, InvalidScoreWarning

ROW = {"prediction": 0.2, "region": "harbour", "age": 44.0}


@pytest.fixture(scope="module")
def loans():
    return tu.simulate.lending(3_000, seed=0)


@pytest.fixture(scope="module")
def fix(loans):
    columns = {name: loans[name] for name in ("prediction", "region", "age", "income")}
    return tu.Logistic("prediction", features=["region", "age"]).fit(columns, loans["outcome"])


# ------------------------------------------------------------------ strict rows


def test_strict_rows_refuse_unknown_keys_and_name_the_similar_column(fix):
    p = fix.predict_one(ROW)
    assert fix.predict_one(ROW | {"note": 1}) == p  # all features are there: other keys are ignored
    for model in (fix, fix.model_):
        assert model.predict_one(ROW, strict=True) == p
        with pytest.raises(ColumnError, match=r"key 'note', which is not a column of the model\nhint: leave such keys out"):
            model.predict_one(ROW | {"note": 1}, strict=True)
        with pytest.raises(
            ColumnError, match=r"key 'regoin', which is not a column of the model\nhint: did you mean 'region'"
        ):
            model.predict_one(ROW | {"regoin": "harbour"}, strict=True)


def test_strict_rows_may_have_every_column_of_the_fit_and_lack_features(fix):
    assert fix.predict_one(ROW | {"income": 3.0}, strict=True) == fix.predict_one(ROW)
    missing = {"prediction": 0.2, "region": "harbour"}
    assert fix.predict_one(missing, strict=True) == fix.predict_one(missing | {"age": None})


# ------------------------------------------------------------------ counts


def test_missing_and_unseen_values_are_counted(fix):
    model = fix.model_.with_stats()
    assert repr(model.stats()) == "0 rows scored, 0 of them without a valid score; 0 calls refused"
    model.predict_one(ROW)
    model.predict_one(ROW | {"region": "Mars"})
    model.predict_one({"prediction": 0.2, "region": float("nan")})
    model.predict_one(ROW | {"region": None, "age": float("nan")})
    regions = np.array(["Mars", "Venus", "harbour", None, "Mars"], object)
    model.predict({"prediction": np.full(5, 0.3), "region": regions, "age": np.array([1.0, np.nan, 3, 4, 5])})
    stats = model.stats()
    assert (stats.rows, stats.invalid, stats.refused) == (9, 0, 0)
    assert stats.missing == {"region": 3, "age": 3}
    assert stats.unseen == {"region": 4}
    assert stats.unseen_levels == {"region": {"Mars": 3, "Venus": 1}}
    assert repr(stats).splitlines()[1:] == ["  region: 3 missing, 4 unseen ('Mars', 'Venus')", "  age: 3 missing"]
    assert json.loads(json.dumps(stats.to_dict()))["unseen_levels"]["region"]["Venus"] == 1


def test_invalid_and_refused_rows_are_counted(fix):
    model = fix.model_.with_stats()
    with pytest.warns(InvalidScoreWarning, match="2 of 3 rows"):
        scores = model.predict(
            {"prediction": [0.1, 7.0, np.nan], "region": ["harbour"] * 3, "age": [1.0, 2.0, 3.0]}, on_error="nan"
        )
    assert np.isnan(scores).tolist() == [False, True, True]
    with pytest.raises(DataError, match="must be a probability"):
        model.predict_one(ROW | {"prediction": 1.5})
    with pytest.raises(ColumnError, match="did you mean 'region'"):
        model.predict_one({"prediction": 0.2, "regoin": "harbour"})
    with pytest.raises(ColumnError, match="no column 'age'"):
        model.predict({"prediction": [0.2], "region": ["harbour"]})
    stats = model.stats()
    assert (stats.rows, stats.invalid, stats.refused) == (3, 2, 3)


def test_a_level_for_unseen_values_is_counted_as_unseen(fix):
    from dataclasses import replace

    schema = fix.model_.schema
    region = replace(schema.features[0], unseen_level=True)
    model = replace(fix.model_, schema=replace(schema, features=(region, schema.features[1]))).with_stats()
    last = schema.features[0].levels[-1]
    model.predict_one(ROW | {"region": "Mars"})
    model.predict_one(ROW | {"region": last})
    model.predict([ROW | {"region": "Mars"}, ROW | {"region": None}])
    assert (model.stats().unseen, model.stats().missing) == ({"region": 3}, {"region": 1, "age": 0})


def test_models_count_only_if_they_are_asked_to(fix, tmp_path):
    with pytest.raises(
        ArgumentError, match=r"does not count what it scores\nhint: load it with tu.load\(path, stats=True\)"
    ):
        fix.model_.stats()
    tu.save(fix, tmp_path / "m.trueup")
    with pytest.raises(ArgumentError, match="does not count"):
        tu.load(tmp_path / "m.trueup").stats()
    model = tu.load(tmp_path / "m.trueup", stats=True)
    assert model.predict_one(ROW) == fix.predict_one(ROW)
    assert (model.stats().rows, model.with_stats().stats().rows) == (1, 0)
    tu.save(model, tmp_path / "again.trueup")
    assert (tmp_path / "again.trueup").read_bytes() == (tmp_path / "m.trueup").read_bytes()
    renamed = model.rename({"age": "years"})
    renamed.predict_one({"prediction": 0.2, "region": "harbour", "years": None})
    assert (renamed.stats().missing, model.stats().missing) == ({"region": 0, "years": 1}, {"region": 0, "age": 0})
    assert pickle.loads(pickle.dumps(model)).stats().rows == 0


def test_counts_of_many_threads_add_up(fix):
    model = fix.model_.with_stats()

    def work(number):
        for _ in range(200):
            model.predict_one(ROW | {"region": f"planet {number % 2}"})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert model.stats().unseen_levels == {"region": {"planet 0": 400, "planet 1": 400}}
    assert model.stats().rows == 800


def test_unseen_levels_take_bounded_memory(fix):
    model = fix.model_.with_stats()
    model.predict([ROW, *(ROW | {"region": f"planet {number}"} for number in range(150))])
    model.predict_one(ROW | {"region": "planet 149"})
    stats = model.stats()
    assert (stats.unseen["region"], len(stats.unseen_levels["region"])) == (151, 100)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_counts_its_own_rows(fix):
    model = fix.model_.with_stats()
    model.predict_one(ROW)
    with model.counter._own_lock():  # held by another thread of the parent
        child = os.fork()
        if not child:
            model.predict_one(ROW)
            os._exit(model.stats().rows)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert model.stats().rows == 1


# ------------------------------------------------------------------ lists of rows


def test_a_list_of_rows_is_scored_as_a_frame_of_them(fix, loans):
    rows = [{"prediction": p, "region": r, "age": a} for p, r, a in zip(*(loans[n][:40] for n in ROW), strict=True)]
    del rows[3]["age"]
    expected = np.array([fix.predict_one(row) for row in rows])
    assert fix.predict(rows).tobytes() == expected.tobytes()
    assert fix.predict(tuple(rows)).tobytes() == expected.tobytes()
    with pytest.raises(ColumnError, match=r"cannot read data of type builtins\.list"):
        fix.predict([])
    with pytest.raises(DataError, match="prediction"):
        fix.predict([rows[0], {"region": "harbour"}])


# ------------------------------------------------------------------ reproducible files

FIT = """
import hashlib, io, sys, warnings
import trueup as tu

warnings.simplefilter("ignore")
loans, threads = tu.simulate.lending(1_500, seed=3), int(sys.argv[1])
columns = {name: loans[name] for name in ("prediction", "region", "age")}
features = {"prediction": "prediction", "features": ["region", "age"]}
for fix in (
    tu.MCGrad(**features, threads=threads, rounds=1, trees=8, stopping=tu.CrossValidation(2)),
    tu.Grouped(tu.Platt(), by=["region"], prediction="prediction"),
    tu.DepthTwo(**features, trees=5, stopping=None, threads=threads),
):
    buffer = io.BytesIO()
    tu.save(fix.fit(columns, loans["outcome"]), buffer)
    print(hashlib.sha256(buffer.getvalue()).hexdigest(), fix.model_.about.fitted)
"""


def test_fits_in_two_processes_with_other_numbers_of_threads_save_the_same_bytes():
    started = []
    for threads in ("1", "2"):
        environment = {
            **os.environ, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads, "SOURCE_DATE_EPOCH": "1000000000",
        }  # fmt: skip
        command = [sys.executable, "-c", FIT, threads]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    printed = [process.communicate()[0] for process in started]
    assert printed[0] == printed[1]
    assert printed[0].count("2001-09-09") == 3


def test_the_date_of_a_fit_is_that_of_source_date_epoch(fix, loans, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    columns = {"prediction": loans["prediction"]}
    assert tu.Platt("prediction").fit(columns, loans["outcome"]).model_.about.fitted == "1970-01-02"
    for wrong in ("yesterday", "9" * 30):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", wrong)
        with pytest.raises(ArgumentError, match=r"SOURCE_DATE_EPOCH must be a number of seconds since 1970; got '"):
            tu.Platt("prediction").fit(columns, loans["outcome"])


def test_saved_parameters_have_no_number_of_threads():
    for one, other in (
        (tu.DepthTwo("p", threads=2), tu.DepthTwo("p")),
        (tu.Auto("p", methods=[tu.DepthTwo(threads=2)], threads=3), tu.Auto("p", methods=[tu.DepthTwo()])),
    ):
        assert one._json_parameters() == other._json_parameters()
        assert "threads" not in json.dumps(one._json_parameters())
        assert one.threads is not None
