"""A fit on rows in partitions gives the model of the same rows in memory."""

from __future__ import annotations

import json
import warnings

import duckdb
import numpy as np
import pandas as pd
import pytest

import trueup as tu
from checks import CLASSES, FEATURES, rows
from partitioned import Listed
from trueup import storage
from trueup.calibrators import stopping
from trueup.calibrators.mcgrad import cascade, estimator, grower, partitioned
from trueup.calibrators.mcgrad.partitioned import fit_partitioned, summarise_partitions
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.cluster.files import ScanPartitions, open_scan_partitions
from trueup.cluster.partitions import open_cluster_frame
from trueup.data import chunks
from trueup.data.folds import assign_folds_by_hash
from trueup.data.frame import read
from trueup.errors import (
    ArgumentError,
    ColumnError,
    DataError,
    FileError,
    HardPredictionWarning,
    LostWorkerError,
    OneClassWarning,
)

CLASS_COLUMNS = [f"p_{name}" for name in CLASSES]
N = 1500


def frame_of(task="binary", n=N, seed=0):
    frame = pd.DataFrame(rows(task, n, seed))
    frame["w"] = np.random.default_rng(seed).exponential(size=n) + 0.1
    return frame


def write(frame, path):
    duckdb.from_df(frame).write_parquet(str(path))
    return tu.scan(str(path))


@pytest.fixture
def small_partitions(monkeypatch):
    """Read files in partitions of 400 rows."""
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 400)
    monkeypatch.setattr(chunks, "MAX_CHUNK_ROWS", 800)


@pytest.fixture
def same_folds(monkeypatch):
    """Assign rows in memory to folds as rows in partitions are assigned."""
    monkeypatch.setattr(
        stopping,
        "assign_folds",
        lambda table, partitions, seed: assign_folds_by_hash(*stopping.row_content(table), partitions, seed),
    )


def assert_same_model(one, other, frame, closeness=1e-9):
    """Assert that two fits have the same trees, evaluations and predictions."""
    assert [r.trees for r in one.history_.rounds] == [r.trees for r in other.history_.rounds]
    assert one.history_.chosen == other.history_.chosen
    for a, b in zip(one.history_.rounds, other.history_.rounds, strict=True):
        np.testing.assert_allclose([a.loss, a.theta], [b.loss, b.theta], rtol=closeness)
    np.testing.assert_allclose(one.predict(frame), other.predict(frame), rtol=closeness)
    assert one.model_.about.rows == other.model_.about.rows


CASES = {
    "binary": ("binary", {}, None),
    "weights": ("binary", {}, "w"),
    "regression": ("regression", {"task": "regression"}, None),
    "classes": ("multiclass", {"prediction": CLASS_COLUMNS, "depth": None}, None),
    "holdout": ("binary", {"stopping": tu.Holdout(0.25, patience=2)}, "w"),
    "fixed": ("binary", {"stopping": None, "rounds": 2, "trees": 5, "monotone": True}, None),
    "refit": ("binary", {"stopping": tu.CrossValidation(3, refit=True)}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_files_give_the_model_of_rows_in_memory(tmp_path, small_partitions, same_folds, case):
    task, parameters, weight = CASES[case]
    parameters = {"prediction": "p", "features": FEATURES, "trees": 40, "rounds": 2, "repeats": 1, **parameters}
    frame = frame_of(task)
    files = write(frame, tmp_path / "rows.parquet")
    found = tu.MCGrad(**parameters).fit(files, "y", sample_weight=weight)
    expected = tu.MCGrad(**parameters).fit(frame, "y", sample_weight=weight)
    assert_same_model(found, expected, frame)
    assert found.history_.chosen
    assert found.history_.reason == expected.history_.reason
    assert found.model_.schema == expected.model_.schema
    assert found.explain().rows == N
    assert found.explain().mean_change == pytest.approx(expected.explain().mean_change)
    assert found.held_out_ is None


def fit_listed(frames, weight=None, **parameters):
    made = tu.MCGrad(**{"prediction": "p", "features": FEATURES, **parameters})
    roles = {"prediction": made.prediction, "features": FEATURES, "task": made.task, "weight": weight}
    with open_cluster_frame(frames, outcome="y", **roles) as partitions:
        fit_partitioned(made, partitions)
    return made


@pytest.mark.parametrize("case", ["weights", "regression", "classes"])
def test_partitions_give_the_model_of_all_rows_in_a_file(tmp_path, case):
    """In one worker; several workers fit the same rounds (`test_grower_workers`, `cluster/test_fit`)."""
    task, parameters, weight = CASES[case]
    rule = tu.CrossValidation(3, patience=2)
    parameters = {**parameters, "rounds": 2, "trees": 40, "stopping": rule}
    frame = frame_of(task).sort_values("age").reset_index(drop=True)
    frame.loc[frame.index > 1200, "country"] = None
    frame.loc[frame.index == 1499, "country"] = "XX"  # a level that no other partition has
    expected = tu.MCGrad(**{"prediction": "p", "features": FEATURES, **parameters})
    expected.fit(write(frame, tmp_path / "rows.parquet"), "y", sample_weight=weight)
    # The last partition has no countries and no ages, the second no rows.
    found = fit_listed(Listed([frame[:700], frame[:0], frame[700:]]), weight, **parameters)
    assert_same_model(found, expected, frame)
    assert found.model_.schema == expected.model_.schema


class ResampledFrame(Listed):
    """Rows that are resampled for every run of workers."""

    def run_workers(self, prepare, work, columns):
        tables = [prepare(frame[list(columns)].sample(frac=1, replace=True), at) for at, frame in enumerate(self.frames)]
        return work(tables[0], [len(tables[0])], SINGLE_PROCESS)


def test_a_frame_whose_rows_change_is_rejected():
    made = tu.MCGrad("p", FEATURES)
    with (
        open_cluster_frame(ResampledFrame([frame_of()]), outcome="y", prediction="p", features=FEATURES) as partitions,
        pytest.raises(DataError, match=r"the rows have changed since the last pass.*\nhint: keep it with"),
    ):
        fit_partitioned(made, partitions)


def test_partitions_of_files_do_not_depend_on_memory(tmp_path, monkeypatch):
    frame = pd.DataFrame({"p": np.tile([0.2, 0.4, 0.6], 900), "y": np.arange(2700) % 2, "a": np.arange(2700) % 7})
    files = write(frame, tmp_path / "rows.parquet")
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 400)
    found = []
    for largest in (400, 1300):
        monkeypatch.setattr(chunks, "MAX_CHUNK_ROWS", largest)
        with open_scan_partitions(files, outcome="y", prediction="p") as partitions:
            found.append(summarise_partitions(partitions, 0))
            found.append(
                partitions.run_workers(
                    lambda table, sizes, communicator: (sizes, table.prediction.tobytes(), communicator.size)
                )
            )
    assert found[0].sizes == found[2].sizes == tuple(enumerate([400] * 6 + [300]))
    assert found[0].keys.tobytes() == found[2].keys.tobytes()
    assert found[1] == found[3] == ([400] * 6 + [300], frame["p"].to_numpy().tobytes(), 1)


def test_rows_without_outcome_or_weight_are_counted_in_their_partition(tmp_path, small_partitions):
    frame = frame_of()
    frame["y"] = np.where(np.arange(N) % 10 == 0, np.nan, frame["y"])
    frame.loc[frame.index < 450, "y"] = np.nan  # all of the first partition, and some of the second
    frame.loc[frame.index == 451, "w"] = 0
    with open_scan_partitions(
        write(frame, tmp_path / "rows.parquet"), outcome="y", prediction="p", weight="w", unlabelled="drop"
    ) as partitions:
        summary = summarise_partitions(partitions, 0)
    kept = np.flatnonzero(frame["y"].notna() & (frame["w"] > 0))
    assert summary.sizes == tuple(enumerate(np.bincount(kept // 400, minlength=4).tolist()))
    assert (len(summary), summary.rows.unlabelled, summary.rows.weightless) == (len(kept), int(frame["y"].isna().sum()), 1)
    assert summary.sample.unlabelled == summary.rows.unlabelled


def test_the_sample_and_the_digest_do_not_depend_on_partitions(tmp_path, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.partitioned.SAMPLE_ROWS", 200)
    frame = frame_of()
    found = []
    for frames in ([frame], [frame[:100], frame[100:100], frame[100:]], [frame[::2], frame[1::2]]):
        with open_cluster_frame(Listed(frames), outcome="y", prediction="p", features=FEATURES) as partitions:
            found.append(summarise_partitions(partitions, 3))
    one, *others = found
    assert len(one.sample) == 200
    for other in others:
        assert other.digest == one.digest
        assert other.keys.tobytes() == one.keys.tobytes()
        assert other.sample.prediction.tobytes() == one.sample.prediction.tobytes()
    assert one.digest != digest_with_another_outcome(frame)
    table = read(frame, outcome="y", prediction="p", features=FEATURES)
    assert np.isin(one.sample.prediction, table.prediction).all()


def digest_with_another_outcome(frame):
    frame = frame.assign(y=np.where(np.arange(N) == 7, 1 - frame["y"], frame["y"]))
    with open_cluster_frame(Listed([frame]), outcome="y", prediction="p", features=FEATURES) as partitions:
        return summarise_partitions(partitions, 3).digest


def test_a_model_fitted_on_more_rows_than_the_sample_records_their_number(tmp_path, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.partitioned.SAMPLE_ROWS", 400)
    frame = frame_of()
    found = tu.MCGrad("p", FEATURES, rounds=1, trees=20).fit(write(frame, tmp_path / "rows.parquet"), "y")
    assert found.model_.about.rows == N
    assert found.explain().rows == 400
    assert not found.model_.looks_like_training_data(frame["p"].to_numpy(), found.predict(frame))
    assert not found.model_.looks_like_training_data(frame["p"].to_numpy()[:400], found.predict(frame[:400]))


GROWER = partitioned.CascadeGrower


def test_validation_rows_are_used_without_copying_columns(tmp_path, small_partitions, monkeypatch):
    frame, other = frame_of(), frame_of(seed=1)
    rule = tu.Validation(other, other["y"], other["w"])
    files = write(frame, tmp_path / "rows.parquet")
    held = []
    monkeypatch.setattr(
        partitioned, "CascadeGrower", lambda table, *given, **named: held.append(table) or GROWER(table, *given, **named)
    )
    found = tu.MCGrad("p", FEATURES, stopping=rule).fit(files, "y").history_
    for name, column in held[0].columns.items():
        assert isinstance(column._first.base, np.memmap), "what may be larger than memory is not copied"
        assert len(column) == 2 * N
        both = np.concatenate([column._first, column._second])
        for at in (slice(0, 10), slice(N - 3, N + 4), slice(N, N + 1), slice(N + 5, 3 * N), slice(N, N), slice(None)):
            np.testing.assert_array_equal(column[at], both[at], err_msg=name)
    monkeypatch.undo()
    expected = tu.MCGrad("p", FEATURES, stopping=rule).fit(frame, "y").history_
    assert found.evaluated_on == "given rows"
    assert found.loss_before == pytest.approx(expected.loss_before, rel=1e-12)
    # In memory, bins depend on the validation rows as well.
    assert found.loss_after == pytest.approx(expected.loss_after, rel=0.01)
    assert found.loss_after < 0.9 * found.loss_before
    monkeypatch.setattr(partitioned, "summarise_partitions", None)  # checked before the rows are read
    with pytest.raises(ArgumentError, match="rows of a Validation must be in memory"):
        tu.MCGrad("p", FEATURES, stopping=tu.Validation(files, "y")).fit(files, "y")


def lose_worker(monkeypatch, after):
    """Lose a worker after so many completed rounds; list the completed rounds at each start."""
    starts, original = [], ScanPartitions.run_workers

    def run_workers(self, work):
        starts.append(len(work.keywords["rounds"]))
        if starts[-1] == after:
            raise LostWorkerError("worker 2 of 2 is gone")
        return original(self, work)

    monkeypatch.setattr(ScanPartitions, "run_workers", run_workers)
    return starts


def test_an_interrupted_fit_resumes_from_completed_rounds(tmp_path, monkeypatch):
    frame, path = frame_of(), tmp_path / "fit.rounds"
    files = write(frame, tmp_path / "rows.parquet")
    parameters = {"rounds": 3, "trees": 20, "stopping": tu.CrossValidation(3, patience=3)}
    expected = tu.MCGrad("p", FEATURES, **parameters).fit(files, "y")
    with monkeypatch.context() as patched:
        assert lose_worker(patched, after=2) == []
        with pytest.raises(LostWorkerError, match="is gone"):
            tu.MCGrad("p", FEATURES, resume=path, **parameters).fit(files, "y")
    assert path.exists()
    with monkeypatch.context() as patched:
        starts = lose_worker(patched, after=-1)
        found = tu.MCGrad("p", FEATURES, resume=path, **parameters).fit(files, "y")
    assert starts == [2, 3]  # a line and three rounds of trees
    assert found.predict(frame).tobytes() == expected.predict(frame).tobytes()
    assert found.history_ == expected.history_
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 3}, "differs in depth"),
        ({"random_state": 1}, "differs in .*seed"),
        ({"stopping": tu.Holdout()}, "differs in .*stopping"),
        ({"rows": 7}, "differs in content"),
        ({"partitions": 500}, "differs in partitions"),
    ],
)
def test_a_checkpoint_of_another_fit_is_rejected(tmp_path, small_partitions, monkeypatch, change, message):
    frame, path = frame_of(), tmp_path / "fit.rounds"
    files = write(frame, tmp_path / "rows.parquet")
    usual = {"rounds": 2, "trees": 3, "stopping": tu.CrossValidation(2, patience=2)}
    with monkeypatch.context() as patched:
        lose_worker(patched, after=1)
        with pytest.raises(LostWorkerError):
            tu.MCGrad("p", FEATURES, resume=path, **usual).fit(files, "y")
    if "rows" in change:
        frame.loc[change.pop("rows"), "p"] /= 2
        write(frame, tmp_path / "rows.parquet")
    if "partitions" in change:
        monkeypatch.setattr(chunks, "PARTITION_ROWS", change.pop("partitions"))
    with pytest.raises(ArgumentError, match=message):
        tu.MCGrad("p", FEATURES, resume=path, **{**usual, **change}).fit(files, "y")


def test_a_checkpoint_with_another_number_of_folds_is_rejected(tmp_path, monkeypatch):
    path, files = tmp_path / "fit.rounds", write(frame_of(), tmp_path / "rows.parquet")
    made = tu.MCGrad("p", FEATURES, resume=path, rounds=2, trees=3, stopping=tu.CrossValidation(2, patience=2))
    with monkeypatch.context() as patched:
        lose_worker(patched, after=1)
        with pytest.raises(LostWorkerError):
            made.fit(files, "y")
    blobs = storage.read(path, kind=cascade.CHECKPOINT)
    manifest = json.loads(blobs[cascade.CHECKPOINT_MANIFEST])
    manifest["rounds"][0] |= {"forests": 2 * manifest["rounds"][0]["forests"], "theta": 1.0}
    blobs = {name: 2 * blob for name, blob in blobs.items()} | {cascade.CHECKPOINT_MANIFEST: json.dumps(manifest).encode()}
    storage.write(path, blobs, kind=cascade.CHECKPOINT)
    with pytest.raises(FileError, match="it has another number of folds"):
        made.fit(files, "y")


def test_a_checkpoint_with_more_rounds_than_requested_is_truncated(tmp_path, monkeypatch):
    frame, path = frame_of(), tmp_path / "fit.rounds"
    files = write(frame, tmp_path / "rows.parquet")
    with monkeypatch.context() as patched:
        lose_worker(patched, after=2)
        with pytest.raises(LostWorkerError):
            tu.MCGrad("p", FEATURES, resume=path, rounds=3, trees=3, stopping=None).fit(files, "y")
    found = tu.MCGrad("p", FEATURES, resume=path, rounds=1, trees=3, stopping=None).fit(files, "y")
    expected = tu.MCGrad("p", FEATURES, rounds=1, trees=3, stopping=None).fit(files, "y")
    assert found.history_ == expected.history_
    assert found.predict(frame).tobytes() == expected.predict(frame).tobytes()


def test_properties_of_all_rows_raise_errors_or_warnings(tmp_path, small_partitions):
    frame = frame_of()
    with pytest.raises(ColumnError, match="column 'late' is identical to the outcome"):
        tu.MCGrad("p").fit(write(frame.assign(late=np.where(frame["y"] == 1, "yes", "no")), tmp_path / "a.parquet"), "y")
    with pytest.warns(OneClassWarning):
        tu.MCGrad("p", ["age"], trees=2, stopping=None).fit(write(frame.assign(y=0), tmp_path / "b.parquet"), "y")
    with pytest.warns(HardPredictionWarning):
        tu.MCGrad("p", ["age"], trees=2, stopping=None).fit(
            write(frame.assign(p=np.round(frame["p"])), tmp_path / "c.parquet"), "y"
        )
    with pytest.raises(DataError, match="9 rows are too few"):
        tu.MCGrad("p", ["age"]).fit(write(frame[:9], tmp_path / "d.parquet"), "y")
    with pytest.raises(DataError, match="has no values: it is missing in all 1,500 rows"):
        tu.MCGrad("p", ["age"], unlabelled="drop").fit(write(frame.assign(y=np.nan), tmp_path / "e.parquet"), "y")
    with pytest.raises(DataError, match="the 20 rows cannot be split into training and held-out rows"):
        tu.MCGrad("p", ["age"], stopping=tu.CrossValidation(200)).fit(write(frame[:20], tmp_path / "f.parquet"), "y")


def test_one_class_in_one_partition_does_not_warn(tmp_path, small_partitions):
    frame = frame_of().sort_values("y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tu.MCGrad("p", FEATURES, trees=2).fit(write(frame, tmp_path / "rows.parquet"), "y")


def test_parameters_and_roles_are_checked_before_rows_are_read(tmp_path, monkeypatch):
    files = write(frame_of(), tmp_path / "rows.parquet")
    monkeypatch.setattr(partitioned, "summarise_partitions", None)
    with pytest.raises(ArgumentError, match="depth must be an integer"):
        tu.MCGrad("p", FEATURES, depth=0).fit(files, "y")
    with pytest.raises(ArgumentError, match="the outcome must be the name of a column"):
        tu.MCGrad("p", FEATURES).fit(files, np.zeros(N))
    with pytest.raises(ArgumentError, match="no prediction column was named"):
        tu.MCGrad().fit(files, "y")


def test_the_engine_must_match_the_frame(tmp_path):
    frame = frame_of()
    files = write(frame, tmp_path / "rows.parquet")
    with pytest.raises(ArgumentError, match="engine must be one of 'auto', 'local', 'spark', 'dask'; got 'cloud'"):
        tu.MCGrad("p", engine="cloud").fit(frame, "y")
    with pytest.raises(ArgumentError, match="engine='dask' does not take a pandas"):
        tu.MCGrad("p", engine="dask").fit(frame, "y")
    with pytest.raises(ArgumentError, match="engine='spark' does not take a trueup"):
        tu.MCGrad("p", engine="spark").fit(files, "y")
    tu.MCGrad("p", FEATURES, engine="local", trees=2, stopping=None).fit(files, "y")


@pytest.mark.parametrize("made", [tu.Isotonic("p"), tu.LSBoost("p"), tu.DepthTwo("p"), tu.Auto("p")], ids=repr)
def test_other_methods_refer_to_mcgrad_for_rows_not_in_memory(tmp_path, made):
    with pytest.raises(ArgumentError, match="takes rows in memory; got files that need not fit in memory\nhint: trueup"):
        made.fit(write(frame_of(), tmp_path / "rows.parquet"), "y")


def test_a_fit_beyond_the_memory_limit_is_rejected_with_the_memory_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(partitioned, "OUTPUT_BYTES", 10**6)
    files = write(frame_of(), tmp_path / "rows.parquet")
    made = tu.MCGrad("p", FEATURES, stopping=tu.CrossValidation(3), trees=2, rounds=1)
    # 3 models of 1,500 rows take more than a megabyte per row.
    message = r"a fit on 1,500 rows takes about 4.9 GB of memory; 2 GB are allowed\nhint: allow more "
    own = r"\(memory=\"5GB\"\), use one held-out set instead of 3 folds, or fit on a sample"
    with pytest.raises(ArgumentError, match=message + own):
        made.fit(files, "y", sample_weight="w")
    monkeypatch.setattr(partitioned, "summarise_partitions", None)  # not needed if all rows are training rows
    with pytest.raises(ArgumentError, match=message):
        made.fit(files, "y")
    small = tu.scan(str(tmp_path / "rows.parquet"), memory="1GB")
    with pytest.raises(ArgumentError, match=r"\nhint: allow more \(memory=\"2GB\"\), or fit on a sample of the rows"):
        tu.MCGrad("p", FEATURES, stopping=None).fit(small, "y")
    monkeypatch.undo()
    monkeypatch.setattr(partitioned, "OUTPUT_BYTES", 10**6)
    made.fit(tu.scan(str(tmp_path / "rows.parquet"), memory="5GB"), "y")


def test_freed_memory_is_returned_at_once_only_during_a_fit(tmp_path, monkeypatch):
    expected = []

    class Library:
        def mallopt(self, name, value):
            expected.append((name, value))

    def work(table, sizes, communicator):
        expected.append(len(table))
        raise DataError("no good")

    monkeypatch.setattr("trueup.cluster.files.ctypes.CDLL", lambda _: Library())
    monkeypatch.setattr("sys.platform", "linux")
    with open_scan_partitions(write(frame_of(), tmp_path / "rows.parquet"), outcome="y", prediction="p") as partitions:
        for _ in range(2):
            with pytest.raises(DataError, match="no good"):
                partitions.run_workers(work)
        assert expected == 2 * [(-3, 2**20), N, (-3, 2**25), (-1, 2**26)]
        monkeypatch.setattr("trueup.cluster.files.ctypes.CDLL", None)  # must not be called on other systems
        monkeypatch.setattr("sys.platform", "win32")
        with pytest.raises(DataError, match="no good"):
            partitions.run_workers(work)


def test_a_full_disk_is_reported_and_nothing_is_left(tmp_path, monkeypatch):
    (tmp_path / "spill").mkdir()
    write(frame_of(), tmp_path / "rows.parquet")
    monkeypatch.setattr("trueup.data.spill.np.ascontiguousarray", raise_disk_full)
    with pytest.raises(
        FileError,
        match=r"cannot spill rows to .* \(40 bytes per row\): No space left on device\nhint: free disk space.*\(spill=...\)",
    ):
        tu.MCGrad("p", FEATURES).fit(tu.scan(str(tmp_path / "rows.parquet"), spill=tmp_path / "spill"), "y")
    assert not list((tmp_path / "spill").iterdir())


def raise_disk_full(array):
    raise OSError(28, "No space left on device")


def parity_rows(rows, seed=0):
    """Rows whose scores are off by one logit, with the sign of the product of three columns."""
    random = np.random.default_rng(seed)
    signs = random.choice([-1.0, 1.0], (rows, 3))
    logit = random.normal(-0.5, 0.7, rows)
    frame = pd.DataFrame(signs, columns=["a", "b", "c"]).assign(p=1 / (1 + np.exp(-logit)))
    frame["y"] = (random.random(rows) < 1 / (1 + np.exp(-logit - signs.prod(axis=1)))).astype(float)
    return frame


def test_a_refit_of_files_has_the_capacity_that_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.grower.TRIAL_ROWS", 3000)  # compared on a sample
    frame, held = parity_rows(4000), parity_rows(500, seed=1)
    files = write(frame, tmp_path / "rows.parquet")
    fix = tu.MCGrad("p", feature_fraction=1.0, stopping=tu.CrossValidation(3, refit=True), threads=1).fit(files, "y")
    (leaves,) = (trial.leaves for trial in fix.history_.capacities if trial.chosen)
    assert leaves > 4
    forest = fix.model_.map.rounds[-1].forests[0]
    assert len(forest.value) / len(forest.root) > 4
    rule = tu.Validation(held, held["y"])
    assert tu.MCGrad("p", feature_fraction=1.0, stopping=rule, threads=1).fit(files, "y").history_.chosen


def test_training_losses_importances_and_the_time_limit_are_those_of_a_fit_in_memory(
    tmp_path, small_partitions, same_folds, monkeypatch
):
    frame = frame_of()
    own = {"prediction": "p", "features": FEATURES, "stopping": tu.Holdout(0.3), "threads": 1, "trees": 20, "depth": 2}
    inside = tu.MCGrad(**own).fit(frame, "y")
    outside = tu.MCGrad(**own).fit(write(frame, tmp_path / "rows.parquet"), "y")
    assert outside.history_.chosen == inside.history_.chosen > 0
    for first, second in zip(outside.history_.rounds, inside.history_.rounds, strict=True):
        assert first.training_loss == pytest.approx(second.training_loss, rel=1e-6)
    np.testing.assert_allclose(outside.feature_importances_, inside.feature_importances_, rtol=1e-4)
    ticks = iter(range(10**6))
    for module in (grower, estimator, partitioned):
        monkeypatch.setattr(module, "now", lambda: float(next(ticks)))
    late = tu.MCGrad(**own, time_limit=0.5).fit(write(frame, tmp_path / "rows.parquet"), "y")
    assert late.history_.stopped == "the time limit of 0.5 s ended the fit: the best rounds so far are kept"
    assert late.history_.chosen == 0
