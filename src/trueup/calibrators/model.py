"""The Model: schema and map, frozen. It is saved, shipped and called; it needs neither scikit-learn nor LightGBM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trueup.cluster.partitions import engine_of
from trueup.data.frame import read_like
from trueup.data.row import check_prediction, encoder
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup._types import FloatArray
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.maps.base import Map
    from trueup.calibrators.rounds import History
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.schema import Schema
    from trueup.data.table import Table


SAME_MOVE = 1e-6  # how near two means must be to be of the same rows: scores may have been rounded on their way


@dataclass(frozen=True)
class About:
    """Where a model comes from.

    Attributes
    ----------
    method : str
        The calibrator that was fitted.
    parameters : mapping
        What it was told, as plain data.
    rows : int
        How many rows it was fitted on.
    fitted : str
        The day, in UTC.
    version : str
        Of trueup.
    """

    method: str
    parameters: Mapping[str, Any]
    rows: int
    fitted: str
    version: str


@dataclass(frozen=True)
class Info:
    """What there is to know about a model before it is used.

    Attributes
    ----------
    method, version, fitted : str
    format : int or None
        Of the file it was loaded from.
    rows : int
    task : str
    outcome, weight : str or None
    prediction, features, classes : tuple of str
    map : str
        What it is made of, in a few words: "1 round (45 trees, 2,310 table cells)".
    size : int or None
        Bytes of the file it was loaded from.
    measure, judged_by : str
        What the two losses are, and of which rows.
    loss_before, loss_after : float
        In the fit.
    """

    method: str
    version: str
    fitted: str
    format: int | None
    rows: int
    task: str
    outcome: str | None
    weight: str | None
    prediction: tuple[str, ...]
    features: tuple[str, ...]
    classes: tuple[str, ...]
    map: str
    size: int | None
    measure: str
    judged_by: str
    loss_before: float
    loss_after: float

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return asdict(self)

    def __repr__(self) -> str:
        where = "" if self.size is None else f", {self.size:,} bytes (format {self.format})"
        names = [*self.features[:12], *(["..."] if len(self.features) > 12 else [])]
        return "\n".join(
            [
                f"{self.method} of trueup {self.version}, fitted {self.fitted} on {self.rows:,} rows{where}",
                f"  task        {self.task}",
                f"  prediction  {', '.join(self.prediction) or 'none'}",
                f"  features    {', '.join(names) or 'none'}",
                f"  made of     {self.map}",
                f"  {self.judged_by}: {self.measure} {self.loss_before:.6g} -> {self.loss_after:.6g}",
            ]
        )


@dataclass(frozen=True, eq=False)
class Model:
    """Schema and map, frozen: ``predict`` a frame, ``predict_one`` a row. Safe to call from several threads.

    Attributes
    ----------
    schema : Schema
    map : Map
    history : History
    explanation : Explanation
    about : About
    file : tuple of int, or None
        Format and bytes of the file it was loaded from.
    """

    schema: Schema
    map: Map
    history: History
    explanation: Explanation
    about: About
    file: tuple[int, int] | None = field(default=None, compare=False)

    def predict(self, data: Any, *, threads: int | None = None) -> FloatArray:
        """Correct the predictions of a frame.

        Parameters
        ----------
        data : pandas, polars or pyarrow frame, dict of arrays, ndarray, or a frame of Spark or Dask
            With the prediction and feature columns of the fit; other columns are left alone.
        threads : int, optional
            As many as there are cores by default; in a task of Spark or Dask, one.

        Returns
        -------
        ndarray of shape (n,), or (n, k) for k classes
            Of a Spark frame, the frame with the column ``p_trueup`` for a prediction ``p`` (k of them for k classes). Of a
            Dask frame, a Series by its index (a DataFrame for k classes). Both are computed when they are asked for.
        """
        if engine_of(data) in ("spark", "dask"):
            from trueup.cluster.predict import predict_cluster_frame

            return cast("FloatArray", predict_cluster_frame(self, data, _checked(threads)))
        return self.predict_table(read_like(data, self.schema), threads=threads)

    def predict_table(self, table: Table, *, threads: int | None = None) -> FloatArray:
        """Correct the predictions of a Table that was read with this model's schema."""
        columns = [table.columns[feature.name] for feature in self.schema.features]
        return self.map.apply(columns, table.prediction, Workers(_checked(threads)))

    def looks_like_training_data(self, before: FloatArray, after: FloatArray, weight: FloatArray | None = None) -> bool:
        """Say whether scores look like those of the rows of the fit: as many, and moved as far on average.

        That is what a model keeps of its rows, with all digits. One shift for all moves any rows as far, and tells nothing.
        """
        told = self.explanation
        if len(after) != self.about.rows or told.rows != len(after) or not told.moved:
            return False
        moved = np.abs(after - before).reshape(len(after), -1).mean(axis=1)
        if np.allclose(moved, moved[0], rtol=SAME_MOVE):
            return False
        return math.isclose(float(np.average(moved, weights=weight)), told.moved, rel_tol=SAME_MOVE)

    def predict_one(self, row: Mapping[str, Any]) -> float | FloatArray:
        """Correct one prediction, in microseconds.

        Parameters
        ----------
        row : mapping
            Names to values; a feature that is not there is missing.

        Returns
        -------
        float, or ndarray of shape (k,) for k classes
        """
        values, prediction = self._encode(row)
        found = self.map.apply_one(values, prediction)
        return float(found[0]) if len(found) == 1 else found

    def explain(self, row: Mapping[str, Any] | None = None) -> Explanation | RowExplanation:
        """Say what was corrected; or, for one row (a mapping), which conditions moved it and by how much."""
        if row is None:
            return self.explanation
        if not isinstance(row, Mapping):
            raise ArgumentError(
                f"explain takes one row as a mapping of names to values; got {type(row).__name__}",
                hint="write it as explain({'p': 0.2, 'country': 'BR'})",
            )
        return self.map.explain_one(self.schema, *self._encode(row))

    def info(self) -> Info:
        """Say what the model is: method, versions, roles, size, when and on how many rows it was fitted."""
        schema, about = self.schema, self.about
        file_format, size = self.file or (None, None)
        return Info(
            about.method, about.version, about.fitted, file_format, about.rows, schema.task, schema.outcome, schema.weight,
            schema.prediction, tuple(feature.name for feature in schema.features), schema.classes,
            self.map.describe(), size, self.history.measure, self.history.judged_by,
            self.history.loss_before, self.history.loss_after,
        )  # fmt: skip

    def __repr__(self) -> str:
        return repr(self.info())

    def __getstate__(self) -> dict[str, Any]:
        # What was worked out for speed cannot be pickled, and is worked out again.
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @cached_property
    def _encoders(self) -> list[tuple[str, Callable[[Any], float]]]:
        return [(feature.name, encoder(feature)) for feature in self.schema.features]

    def _encode(self, row: Mapping[str, Any]) -> tuple[list[float], list[float]]:
        try:
            get = row.get
        except AttributeError:
            raise ArgumentError(
                f"predict_one takes a mapping of names to values; got {type(row).__name__}",
                hint="write it as predict_one({'p': 0.2, 'country': 'BR'}); predict takes frames",
            ) from None
        task = self.schema.task
        prediction = [check_prediction(get(name), name, task) for name in self.schema.prediction]
        if task == "multiclass":
            _adds_up(prediction)
        return [encode(get(name)) for name, encode in self._encoders], prediction


def _checked(threads: int | None) -> int | None:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, (int, np.integer)) or threads < 1):
        raise ArgumentError(f"threads must be a whole number, at least 1; got {threads!r}")
    return threads


def _adds_up(prediction: list[float]) -> None:
    from trueup.data import checks

    checks.prediction(np.array([prediction]), tuple(str(at) for at in range(len(prediction))), "multiclass")
