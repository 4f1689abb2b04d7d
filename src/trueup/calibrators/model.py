"""The Model of a fitted calibrator: its schema (columns) and map (correction). It needs no scikit-learn or LightGBM.

A map scores rows, describes and explains itself, and is stored in a file. A file may have been written by anybody:
`Map.unpack` rejects whatever would make the scorer read outside its arrays.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np

from trueup._validate import check_choice, check_integer, did_you_mean
from trueup.calibrators.floors import EPS, MIN_FLOOR, OLD_FLOORS, TINY, Floors
from trueup.calibrators.info import SHOWN_FEATURES, Info
from trueup.calibrators.row_explanation import EffectSums, RowExplanation, explain_change, value_text
from trueup.calibrators.serving import RowFinding, ServingCounter, ServingStats, column_finding, row_findings
from trueup.calibrators.stopping import task_loss
from trueup.data.columns import encoder, engine_of, from_array
from trueup.data.frame import read_like
from trueup.data.values import LOGIT_HINT, LOGIT_SETTING, MAX_VALUE, SUM_TOLERANCE, to_probabilities
from trueup.errors import ArgumentError, ColumnError, DataError, InvalidScoreWarning, TrueupError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from trueup._types import AnyArray, BoolArray, DaskLike, FloatArray, SparkLike, UInt64Array
    from trueup.calibrators.evidence import HeldOutEvidence
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.history import History
    from trueup.data.table import Schema, Table, Task
    from trueup.metrics.inputs import Scored

OnError = Literal["raise", "nan"]

CHANGE_TOLERANCE = 1e-6  # relative difference of two mean changes of the same rows: scores may have been rounded
MISSPELLED = 0.65  # similarity of a key of a row to the column that it may be meant to name


class Map(ABC):
    """A function from the features and the prediction of a row to a corrected prediction; immutable and thread-safe."""

    kind: ClassVar[str]  # its name in a model file
    unsavable_hint: ClassVar[str | None] = None  # of maps with objects of other libraries: what to use to save a model

    @property
    def steps(self) -> int:
        """Return the number of rounds or patches applied in sequence; 1 for curves and LoRe, 0 for `UnchangedMap`."""
        return 1

    @property
    def changes(self) -> bool:
        """Return whether the map can change a prediction."""
        return self.steps > 0

    @abstractmethod
    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return corrected predictions, (n,) or (n, outputs) as ``prediction``; ``columns`` are features in schema order.

        The score of a row is bitwise independent of the other rows; the arguments are not modified.
        """

    def stages(self, columns: Iterable[AnyArray], prediction: FloatArray) -> Iterator[FloatArray]:
        """Yield the predictions of all rows after 0, 1, 2, ... rounds; the last are those of `apply`."""
        yield prediction.copy()
        if self.changes:
            yield self.apply(columns, prediction)

    def apply_table(self, table: Table, workers: Workers | None = None) -> FloatArray:
        """Return the corrected predictions of the rows of a table."""
        return self.apply([table.columns[feature.name] for feature in table.schema.features], table.prediction, workers)

    @abstractmethod
    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return what `apply` returns for one row, shape (outputs,); ``row`` has codes and numbers in schema order."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the size of the map in a few words: "1 round (45 trees, 2,310 table cells)"."""

    @abstractmethod
    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row's prediction; ``row`` has codes and numbers in the order of ``schema``."""

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return the feature sets (positions in the schema) in which explanations search for segments, in order."""
        return []

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        raise NotImplementedError

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> Self:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        raise NotImplementedError


class UnchangedMap(Map):
    """Leaves every prediction unchanged: the result where no correction helps."""

    kind = "unchanged"
    steps = 0

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:  # noqa: ARG002
        """Return a copy of the predictions."""
        return prediction.copy()

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:  # noqa: ARG002
        """Return a copy of the prediction of one row."""
        return np.array(prediction, np.float64)

    def describe(self) -> str:
        """Return the text for `Info`: the map leaves every score unchanged."""
        return "leaves every score unchanged"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Return an explanation without contributions: the prediction does not change."""
        return explain_change(task_loss(schema.task).link, prediction, prediction, (), EffectSums(schema, row, prediction))

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return an empty manifest entry and no arrays."""
        return {}, {}

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> UnchangedMap:  # noqa: ARG003
        """Return the map; raise FileContentError if there are arrays."""
        require(not blobs, "it has arrays that the manifest does not list")
        return cls()


class FileContentError(Exception):
    """The content of a file is not as trueup writes it; `trueup.load` reports this error as a FileError with the path."""


def require(condition: bool, message: str) -> None:  # noqa: FBT001
    """Raise FileContentError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise FileContentError(message)


def is_integer(value: object) -> bool:
    """Return whether a JSON value is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def are_finite(*values: object) -> bool:
    """Return whether all JSON values are finite numbers; an integer that is too large for a float is not."""
    try:
        return all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in values)
    except OverflowError:
        return False


def check_fields(*records: Any) -> None:
    """Raise FileContentError unless each str, bool, int and float field of the dataclasses ``records`` has that type."""
    for record in records:
        for item in fields(record):
            value = getattr(record, item.name)
            valid = {"str": isinstance(value, str), "bool": isinstance(value, bool), "float": are_finite(value)}
            valid["int"] = valid["float"] and is_integer(value)
            valid["float | None"] = value is None or valid["float"]
            valid["float | None"] = value is None or valid["float"]
            require(valid.get(str(item.type), True), f"{item.name} of its {type(record).__name__} is invalid")


def read_texts(value: Any, what: str) -> tuple[str, ...]:
    """Return a JSON list of strings as a tuple; raise FileContentError, which names ``what`` it is, for any other value."""
    require(isinstance(value, list) and all(isinstance(text, str) for text in value), f"{what} must be texts")
    return tuple(value)


def pack_arrays(dtypes: Mapping[str, str], *arrays: AnyArray) -> dict[str, bytes]:
    """Return arrays as bytes by name, in the order of ``dtypes`` (name -> dtype with byte order)."""
    return {
        name: np.ascontiguousarray(array, dtype).tobytes()
        for (name, dtype), array in zip(dtypes.items(), arrays, strict=True)
    }


def unpack_arrays(dtypes: Mapping[str, str], blobs: Mapping[str, bytes]) -> list[AnyArray]:
    """Return the arrays named in ``dtypes``, in that order, copied from ``blobs`` to the byte order of this machine."""
    stored = [np.frombuffer(blobs[name], np.dtype(dtype)) for name, dtype in dtypes.items()]
    return [array.astype(array.dtype.newbyteorder("=")) for array in stored]


def pack_floors(floors: Floors) -> dict[str, list[float]]:
    """Return what a model file stores of floors: nothing for those of files that state none."""
    return {} if floors == OLD_FLOORS else {"floors": list(floors)}


def unpack_floors(entry: Mapping[str, Any]) -> Floors:
    """Restore floors from what `pack_floors` returned; raise FileContentError if they are invalid."""
    floors = entry.get("floors", list(OLD_FLOORS))
    valid = isinstance(floors, list) and len(floors) == 2 and all(isinstance(value, float) for value in floors)
    in_bounds = valid and all(TINY <= value < 0.5 for value in floors) and floors[1] >= EPS
    require(in_bounds or (valid and floors == [MIN_FLOOR, MIN_FLOOR]), "the floors are invalid")
    return floors[0], floors[1]


@dataclass(frozen=True)
class FitRecord:
    """How a model was fitted: the calibrator, its parameters, the training rows, the day (UTC), the version of trueup."""

    method: str
    parameters: Mapping[str, Any]
    rows: int
    fitted: str
    version: str


def date_of_fit() -> str:
    """Return today's date (UTC), or that of ``SOURCE_DATE_EPOCH`` (seconds since 1970), so that files are reproducible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        now = dt.datetime.fromtimestamp(int(epoch), dt.UTC) if epoch else dt.datetime.now(dt.UTC)
    except (ValueError, OverflowError, OSError):
        raise ArgumentError(
            f"SOURCE_DATE_EPOCH must be a number of seconds since 1970; got {epoch!r}", hint="set it to a whole number"
        ) from None
    return now.date().isoformat()


@dataclass(frozen=True, eq=False)
class Model:
    """A fitted calibrator, immutable and thread-safe: ``predict`` corrects a frame, ``predict_one`` corrects one row.

    Attributes
    ----------
    schema : Schema
    map : Map
    history : History
    explanation : Explanation
    about : FitRecord
    file : tuple of int, or None
        Format number and size in bytes of the file that the model was loaded from.
    evidence : HeldOutEvidence or None
        Held-out outcomes and scores, if the model was loaded from a file that keeps them (``tu.save(..., evidence=True)``):
        such a model can be ``labelled=`` in `trueup.decisions`.
    counter : ServingCounter or None
        What `stats` returns is counted in, if it is (`with_stats`); the model itself never changes.
    """

    schema: Schema
    map: Map
    history: History
    explanation: Explanation
    about: FitRecord
    file: tuple[int, int] | None = field(default=None, compare=False)
    evidence: HeldOutEvidence | None = field(default=None, compare=False)
    counter: ServingCounter | None = field(default=None, compare=False)

    @property
    def held_out_(self) -> Scored | None:
        """Outcomes, held-out corrected scores and weights of the evidence, as calibrators have them; None without it."""
        return None if self.evidence is None else self.evidence.scored

    @property
    def held_out_before_(self) -> FloatArray | None:
        """The held-out scores before the correction; None without evidence."""
        return None if self.evidence is None else self.evidence.before

    @property
    def held_out_cluster_(self) -> UInt64Array | None:
        """The cluster of each held-out row; None without evidence or clusters."""
        return None if self.evidence is None else self.evidence.cluster

    @overload
    def predict(self, data: SparkLike | DaskLike, *, threads: int | None = None, on_error: OnError = "raise") -> Any: ...

    @overload
    def predict(self, data: object, *, threads: int | None = None, on_error: OnError = "raise") -> FloatArray: ...

    def predict(self, data: Any, *, threads: int | None = None, on_error: OnError = "raise") -> Any:
        """Correct the predictions of a frame.

        Parameters
        ----------
        data : pandas, polars or pyarrow frame, dict of arrays, list of dicts, ndarray, or a Spark or Dask DataFrame
            With the prediction and feature columns of the fit; other columns are ignored. Predictions are logits if they
            were logits in the fit.
        threads : int, optional
            By default the number of cores; one in a task of Spark or Dask.
        on_error : {"raise", "nan"}
            What to do with rows without a valid score: one that is missing, infinite, a text among numbers or no
            probability, or class probabilities that do not add up to 1. "nan" predicts NaN for them; a warning has their
            number (for Spark and Dask, whose predictions are computed later, count them in the result).

        Returns
        -------
        ndarray of shape (n,), or (n, k) for k classes
            For a Spark frame, the frame with the column ``p_trueup`` for a prediction ``p`` (k columns for k classes). For
            a Dask frame, a Series with its index (a DataFrame for k classes). Both are lazy.
        """
        check_integer("threads", threads, 1, optional=True)
        check_choice("on_error", on_error, ("raise", "nan"))
        if engine_of(data) in ("spark", "dask"):
            from trueup.cluster.partitions import predict_cluster_frame

            return predict_cluster_frame(self, data, threads, on_error)
        findings: list[RowFinding] = []
        observe = None if self.counter is None else lambda *read: findings.append(column_finding(*read))
        try:
            table = read_like(data, self.schema, lenient=on_error == "nan", observe=observe)
        except TrueupError:
            if self.counter is not None:
                self.counter.refuse()
            raise
        table, valid = (table, None) if on_error == "raise" else self._valid_rows(table)
        scores = self.predict_table(table, threads=threads)
        if self.counter is not None:
            invalid = 0 if valid is None else len(valid) - len(scores)
            self.counter.add(len(scores) + invalid, invalid, findings)
        if valid is None:
            return scores
        _warn_of_invalid_rows(valid)
        return _fill_invalid(scores, valid)

    def staged_predict(self, data: Any, *, on_error: OnError = "raise") -> Iterator[FloatArray]:
        """Yield the predictions of a frame in memory after 0, 1, 2, ... rounds (or patches), as `predict` returns them.

        The first are the scores before the correction, the last those of `predict`. A method without rounds, such as a
        curve, has one. ``on_error`` is that of `predict`.

        Examples
        --------
        >>> import trueup as tu
        >>> loans = tu.simulate.lending(10_000, seed=0)
        >>> fix = tu.MCGrad("prediction", ["region", "age"]).fit(loans, loans["outcome"])
        >>> losses = [tu.metrics.log_loss(loans["outcome"], p) for p in fix.staged_predict(loans)]
        >>> len(losses) == fix.history_.chosen + 1, losses[-1] < losses[0]
        (True, True)
        """
        if engine_of(data) is not None:
            raise ArgumentError(
                f"staged_predict takes rows in memory; got a {type(data).__module__}.{type(data).__qualname__}",
                hint="collect some of the rows, or use predict",
            )
        check_choice("on_error", on_error, ("raise", "nan"))
        if on_error == "raise":
            return self._stages(read_like(data, self.schema))
        table, valid = self._valid_rows(read_like(data, self.schema, lenient=True))
        _warn_of_invalid_rows(valid)
        return (_fill_invalid(scores, valid) for scores in self._stages(table))

    def _stages(self, table: Table) -> Iterator[FloatArray]:
        return self.map.stages([table.columns[feature.name] for feature in self.schema.features], table.prediction)

    def predict_valid_rows(self, table: Table, *, threads: int | None = None) -> FloatArray:
        """Correct the predictions of a Table that was read leniently; return NaN for rows without a valid score."""
        kept, valid = self._valid_rows(table)
        return _fill_invalid(self.predict_table(kept, threads=threads), valid)

    def _valid_rows(self, table: Table) -> tuple[Table, BoolArray]:
        """Return the rows with a valid score of a Table that was read leniently, and which rows they are."""
        if not self.schema.prediction:
            return table, np.ones(len(table), bool)
        task, logits = self.schema.task, self.schema.logits
        valid = _valid_scores(table.prediction, "regression" if logits else task)
        kept = table if valid.all() else table.take(np.flatnonzero(valid))
        if logits:
            kept = replace(kept, prediction=to_probabilities(kept.prediction, self.schema.prediction, task, logits=True))
        return kept, valid

    def predict_table(self, table: Table, *, threads: int | None = None) -> FloatArray:
        """Correct the predictions of a Table that was read with the schema of this model."""
        columns = [table.columns[feature.name] for feature in self.schema.features]
        return self.map.apply(columns, table.prediction, Workers(threads))

    def predict_one(self, row: Mapping[str, Any], *, strict: bool = False) -> float | FloatArray:
        """Correct one prediction, in microseconds.

        Parameters
        ----------
        row : mapping or pandas Series
            Column names to values; an absent feature counts as missing. If a feature is absent, a key that is not a column
            of the fit is an error: it may be misspelled. A row with all features may have other keys, which are ignored.
        strict : bool
            Every key that is not a column of the fit is an error, also if no feature is absent.

        Returns
        -------
        float, or ndarray of shape (k,) for k classes
        """
        if self.counter is not None:
            return self._predict_counted(row, self.counter, strict=strict)
        scores = self.map.apply_one(*self._encode(row, strict=strict))
        return float(scores[0]) if len(scores) == 1 else scores

    def _predict_counted(self, row: Mapping[str, Any], counter: ServingCounter, *, strict: bool) -> float | FloatArray:
        try:
            values, prediction = self._encode(row, strict=strict)
            scores = self.map.apply_one(values, prediction)
        except TrueupError:
            counter.refuse()
            raise
        counter.add(1, 0, row_findings(self.schema, values, row, from_array))
        return float(scores[0]) if len(scores) == 1 else scores

    def with_stats(self) -> Model:
        """Return a model with the same predictions that counts what it is asked to score: see `stats`.

        Counting is thread-safe, and costs a few microseconds per call. Counts are those of this process and of rows in
        memory: they are neither saved nor sent to the workers of a cluster.

        Examples
        --------
        >>> import trueup as tu
        >>> loans = tu.simulate.lending(5_000, seed=0)
        >>> model = tu.Logistic("prediction", features=["region", "age"]).fit(loans, loans["outcome"]).model_.with_stats()
        >>> rows = [{"prediction": 0.2, "region": "harbour", "age": 44}, {"prediction": 0.4, "region": "Mars", "age": None}]
        >>> scores = model.predict(rows)
        >>> model.stats()
        2 rows scored, 0 of them without a valid score; 0 calls refused
          region: 0 missing, 1 unseen ('Mars')
          age: 1 missing
        """
        return replace(self, counter=ServingCounter())

    def stats(self) -> ServingStats:
        """Return how many rows were scored since `with_stats` or ``tu.load(path, stats=True)``, and what they lacked.

        Returns
        -------
        ServingStats
            Rows, rows without a valid score, calls that raised, and per feature missing and unseen values.
        """
        if self.counter is None:
            raise ArgumentError(
                "this model does not count what it scores",
                hint="load it with tu.load(path, stats=True), or use model.with_stats()",
            )
        return self.counter.stats(self.schema)

    @overload
    def explain(self, row: None = None, *, details: bool = False) -> Explanation: ...

    @overload
    def explain(self, row: Any, *, details: bool = False) -> RowExplanation: ...

    def explain(self, row: Mapping[str, Any] | None = None, *, details: bool = False) -> Explanation | RowExplanation:
        """Explain the corrections of the model, or the change of one prediction.

        Parameters
        ----------
        row : mapping or pandas Series, optional
            Column names to values. Without it, the segments are returned whose scores were raised and lowered.
        details : bool
            List every condition that the row meets (leaves, table cells or patches) on the scale on which they add up,
            such as logits, instead of the five largest effects of features.

        Returns
        -------
        Explanation, or RowExplanation for a row

        Notes
        -----
        Effects are changes of the prediction, by the columns that cause them, and add up to its change. The value of a
        leaf is divided among the features that its path tests, in proportion to how much it would change if the splits on a
        feature were undone: if the row followed both branches, weighted by the training rows. Changes of logits become
        changes of probabilities in proportion: a contribution c of a total
        change C of the logit has the effect ``c / C * (after - before)``, whatever the order of contributions. With several
        classes this is the integral along the straight line from the logits before to those after (integrated gradients).

        References
        ----------
        Sundararajan, Taly & Yan (2017), "Axiomatic Attribution for Deep Networks".

        Examples
        --------
        >>> import trueup as tu
        >>> loans = tu.simulate.lending(10_000, seed=0)
        >>> model = tu.MCGrad("prediction", ["region", "age"]).fit(loans, loans["outcome"]).model_
        >>> explained = model.explain({"prediction": 0.1, "region": "harbour", "age": 44})
        >>> explained.effects[0].name
        'region=harbour'
        >>> round(sum(effect.change for effect in explained.effects) - (explained.after - explained.before), 15) == 0
        True
        """
        if row is None:
            if details:
                raise ArgumentError(
                    "details are of one row, and explain got none",
                    hint="write it as explain({'p': 0.2, 'country': 'BR'}, details=True)",
                    parameter="details",
                )
            return self.explanation
        if not hasattr(row, "get") or getattr(row, "ndim", 1) != 1:  # a Series of pandas is a row, too
            raise ArgumentError(
                f"explain takes one row as a mapping of names to values; got {type(row).__name__}",
                hint=f"write it as explain({self._example()})",
            )
        values, prediction = self._encode(row)
        explained = self.map.explain_one(self.schema, values, prediction).name_unknown(self._unknown_levels(row, values))
        return replace(explained, details=bool(details))

    def _unknown_levels(self, row: Mapping[str, Any], values: Sequence[float]) -> dict[str, str]:
        """Return the text of each unseen level in a row, "region is unknown: Mars", by that of a missing one."""
        return {
            value_text(feature, value): f"{feature.name} is unknown: {row[feature.name]}"
            for feature, value in zip(self.schema.features, values, strict=True)
            if feature.kind == "categorical" and value < 0 and row.get(feature.name) is not None
            and not from_array([row[feature.name]], feature.name).missing()[0]
        }  # fmt: skip

    def _example(self) -> str:
        """Return a row with the names of the first columns of the model, as text."""
        names = [repr(name) for name in self._inputs]
        values = ["0.2"] * len(self.schema.prediction) + ["..."] * len(self.schema.features)
        shown = ", ".join(f"{name}: {value}" for name, value in list(zip(names, values, strict=True))[:3])
        return f"{{{shown}{', ...' if len(names) > 3 else ''}}}"

    def rename(self, names: Mapping[str, str]) -> Model:
        """Return a model that reads columns of other names, for frames whose columns have other names than in the fit.

        Parameters
        ----------
        names : mapping
            Present name of a prediction or feature column to its new name; other columns keep theirs.

        Returns
        -------
        Model
            It predicts the same, and can be saved. The segments of `explain` keep the names of the fit.

        Examples
        --------
        >>> import trueup as tu
        >>> loans = tu.simulate.lending(1_000, seed=0)
        >>> model = tu.Platt("prediction").fit(loans, loans["outcome"]).model_
        >>> renamed = model.rename({"prediction": "score"})
        >>> bool((renamed.predict({"score": loans["prediction"]}) == model.predict(loans)).all())
        True
        """
        if not isinstance(names, Mapping) or not all(isinstance(new, str) for new in names.values()):
            raise ArgumentError(
                f"rename takes a mapping of present to new names; got {names!r}", hint='write it as rename({"p": "score"})'
            )
        for old in names:
            if old not in self._inputs:
                known = ", ".join(self._inputs[:SHOWN_FEATURES])
                hint = did_you_mean(str(old), self._inputs) or f"it reads {known}"
                raise ColumnError(f"the model has no column {old!r}", hint=hint)
        renamed = {name: names.get(name, name) for name in self._inputs}
        if len(set(renamed.values())) < len(renamed):
            listed = ", ".join(renamed.values())
            raise ColumnError(f"two columns of the model would have the same name: {listed}", hint="use distinct names")
        features = tuple(replace(feature, name=renamed[feature.name]) for feature in self.schema.features)
        prediction = tuple(renamed[name] for name in self.schema.prediction)
        schema = replace(self.schema, prediction=prediction, features=features)
        return replace(self, schema=schema, file=None, counter=None if self.counter is None else ServingCounter())

    def looks_like_training_data(self, before: FloatArray, after: FloatArray, weight: FloatArray | None = None) -> bool:
        """Return whether scores may be those of the training rows: equal in number and in mean absolute change.

        A model stores the mean absolute change of its training rows at full precision. If every score changes by the same
        amount, as it would on any rows, the result is False.
        """
        training = self.explanation
        if len(after) != self.about.rows or training.rows != len(after) or not training.mean_change:
            return False
        change = np.abs(after - before).reshape(len(after), -1).mean(axis=1)
        if np.allclose(change, change[0], rtol=CHANGE_TOLERANCE):
            return False
        return math.isclose(float(np.average(change, weights=weight)), training.mean_change, rel_tol=CHANGE_TOLERANCE)

    def info(self) -> Info:
        """Return a summary: method, version, columns, losses, file size, and when and on how many rows it was fitted."""
        schema, about = self.schema, self.about
        file_format, size = self.file or (None, None)
        return Info(
            about.method, about.version, about.fitted, file_format, about.rows, schema.task, schema.outcome, schema.weight,
            schema.prediction, tuple(feature.name for feature in schema.features), schema.classes,
            self.map.describe(), size, self.history.measure, self.history.evaluated_on,
            self.history.loss_before, self.history.loss_after,
            None if math.isnan(self.history.shrunken_gain) else self.history.shrunken_gain,
            0 if self.evidence is None else len(self.evidence.scored.y),
        )  # fmt: skip

    def __repr__(self) -> str:
        return repr(self.info())

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties cannot be pickled and are computed again.
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def _encoders(self) -> list[tuple[str, Callable[[Any], float]]]:
        return [(feature.name, encoder(feature)) for feature in self.schema.features]

    @cached_property
    def _inputs(self) -> tuple[str, ...]:
        return (*self.schema.prediction, *(feature.name for feature in self.schema.features))

    def _encode(self, row: Mapping[str, Any], *, strict: bool = False) -> tuple[list[float], list[float]]:
        """Return the features of one row (a level code or a number each) and its predictions; raise if they are invalid."""
        try:
            get = row.get
        except AttributeError:
            raise ArgumentError(
                f"predict_one takes a mapping of names to values; got {type(row).__name__}",
                hint=f"write it as predict_one({self._example()}); predict takes frames and arrays",
            ) from None
        if strict or not all(map(row.__contains__, self._inputs)):
            self._check_keys(row)
        task, names = self.schema.task, self.schema.prediction
        logits = self.schema.logits
        prediction = [check_prediction(get(name), name, "regression" if logits else task) for name in names]
        if task == "multiclass" or logits:
            scores = np.array([prediction]) if task == "multiclass" else np.array(prediction)
            prediction = to_probabilities(scores, names, task, logits=logits).ravel().tolist()
        return [encode(get(name)) for name, encode in self._encoders], prediction

    def _check_keys(self, row: Mapping[str, Any]) -> None:
        """Raise if a row has a key that is not a column of the fit."""
        parameters = self.about.parameters
        fit, excluded = parameters.get("fit"), parameters.get("exclude")
        known = {*self._inputs, self.schema.outcome, self.schema.weight}
        known.update(fit.get("unused", ()) if isinstance(fit, dict) else ())
        known.update(excluded if isinstance(excluded, list) else [excluded])
        unknown = [key for key in row.keys() if key not in known]  # noqa: SIM118  (pandas iterates over the values)
        if not unknown:
            return
        absent = [name for name in self._inputs if name not in row]
        suggested = ((key, did_you_mean(str(key), absent or self._inputs, MISSPELLED)) for key in unknown)
        key, hint = next(((key, hint) for key, hint in suggested if hint), (unknown[0], ""))
        listed = ", ".join(absent[:SHOWN_FEATURES]) + (", ..." if len(absent) > SHOWN_FEATURES else "")
        raise ColumnError(
            f"the row has a key {key!r}, which is not a column of the model" + (f", and no {listed}" if absent else ""),
            hint=hint or "leave such keys out; an absent feature counts as missing",
        )


def _warn_of_invalid_rows(valid: BoolArray) -> None:
    """Warn of the rows that are predicted as NaN."""
    if not valid.all():
        warnings.warn(
            f"{int((~valid).sum()):,} of {len(valid):,} rows have no valid score, the first at row "
            f"{int(np.argmin(valid))}: their prediction is NaN\n"
            'hint: on_error="raise" says what is wrong with the first of them',
            InvalidScoreWarning,
            stacklevel=3,
        )


def _fill_invalid(scores: FloatArray, valid: BoolArray) -> FloatArray:
    """Return the scores of the ``valid`` rows in their places, and NaN elsewhere."""
    filled = np.full((len(valid), *scores.shape[1:]), np.nan)
    filled[valid] = scores
    return filled


def _valid_scores(scores: FloatArray, task: Task) -> BoolArray:
    """Return which rows have valid scores, by the rules of `check_scores`."""
    columns = scores[:, None] if scores.ndim == 1 else scores
    low, high = (-MAX_VALUE, MAX_VALUE) if task == "regression" else (0.0, 1.0)
    valid: BoolArray = np.asarray(((columns >= low) & (columns <= high)).all(axis=1))
    if task == "multiclass":
        valid[valid] = np.abs(columns[valid].sum(axis=1) - 1) <= SUM_TOLERANCE
    return valid


def check_prediction(value: Any, name: str, task: Task) -> float:
    """Return the prediction of one row; raise unless it is finite, and a probability unless the task is regression."""
    try:
        number = math.nan if isinstance(value, (str, bytes, np.ndarray, np.datetime64)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"prediction {name!r} must be a finite number; got {value!r}", hint="every row needs the score to be corrected"
        )
    if task != "regression" and not 0.0 <= number <= 1.0:
        raise DataError(
            f"prediction {name!r} must be a probability in [0, 1]; got {number:g}",
            hint=LOGIT_HINT,
            settings=LOGIT_SETTING,
        )
    if abs(number) > MAX_VALUE:
        raise DataError(
            f"prediction {name!r} must lie within {MAX_VALUE:g} of 0; got {number:g}", hint="measure it in a larger unit"
        )
    return number
