"""Predictions for Spark and Dask frames: computed lazily, partition by partition, and equal to those in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.cluster.partitions import require_engine
from trueup.data.columns import check_kind, engine_of, open_source
from trueup.data.frame import RowPosition, read_like
from trueup.errors import ColumnError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import FloatArray
    from trueup.data.table import Schema, Table

UNTYPED_ARROW, UNTYPED_NUMPY = "null", "object"  # types that do not determine the kind of a column


class Scorer(Protocol):
    """The part of a model that is used here, since models belong to a higher layer."""

    @property
    def schema(self) -> Schema:
        """The columns that the model reads."""

    def predict_table(self, table: Table, *, threads: int | None = None) -> FloatArray:
        """Return the corrected predictions of a Table."""


def predict_cluster_frame(model: Scorer, data: Any, threads: int | None = None) -> Any:
    """Add corrected predictions to a Spark frame, or return those of a Dask frame, when it is computed.

    Returns
    -------
    pyspark.sql.DataFrame
        The frame with one more column, ``p_trueup`` for a prediction ``p``; one per class for several classes.
    or dask.dataframe.Series
        The corrected predictions with the index of the frame; a DataFrame with one column per class for several classes.
    """
    engine = engine_of(data)
    assert engine is not None
    require_engine(engine)
    predict = _predict_spark if engine == "spark" else _predict_dask
    return predict(model, data, threads or 1)  # a task has one core, however many the machine has


def _predict_rows(model: Scorer, frame: Any, threads: int, position: RowPosition) -> FloatArray:
    """Return the corrected predictions of some rows of a partition, one column per prediction."""
    if not len(frame):
        return np.empty((0, len(model.schema.score_names)))
    table = read_like(frame, model.schema, position)
    return model.predict_table(table, threads=threads).reshape(len(table), len(model.schema.score_names))


def _required_columns(schema: Schema) -> list[str]:
    return list(dict.fromkeys([*schema.prediction, *(feature.name for feature in schema.features)]))


def _check_columns(schema: Schema, empty: Any, untyped: Sequence[str]) -> None:
    """Check names and types of the columns that a model needs, in a frame without rows."""
    source = open_source(empty)
    read_like({key: np.empty(0) for key in source.keys}, schema)  # raises if a column is missing
    columns = {name: source.fetch(name) for name in _required_columns(schema) if name not in untyped}
    for name in schema.prediction:
        if name in columns and columns[name].kind in ("text", "date"):
            raise DataError(
                f"prediction column {name!r} must hold numbers; got {columns[name].kind}s", hint="convert the column first"
            )
    for feature in schema.features:
        if feature.name in columns:
            check_kind(columns[feature.name], feature)


def _predict_spark(model: Scorer, frame: Any, threads: int) -> Any:
    from pyspark.sql.types import DoubleType, StructField, StructType

    from trueup.cluster.spark import arrow_types, empty_table, number_columns, spark_errors

    schema, names = model.schema, list(frame.columns)
    types = arrow_types(frame, [name for name in _required_columns(schema) if name in names])
    _check_columns(schema, empty_table(types), [name for name, kind in types.items() if kind == UNTYPED_ARROW])
    lower_names = {name.lower() for name in names}
    for name in schema.score_names:
        if name.lower() in lower_names:
            raise ColumnError(f"there is a column {name!r} already", hint="rename it, or drop it first")
    with spark_errors():
        numbered = number_columns(frame)
        new = [StructField(f"n{index}", DoubleType(), nullable=False) for index in range(len(schema.score_names))]
        predicted = numbered.mapInArrow(_predict_task(model, names, threads), StructType([*numbered.schema.fields, *new]))
        return predicted.toDF(*names, *schema.score_names)


def _predict_task(model: Scorer, names: list[str], threads: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    numbers = {name: f"c{names.index(name)}" for name in _required_columns(model.schema)}

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from trueup.cluster.spark import partition_number

        first, part = 0, partition_number()
        for batch in batches:
            table = pa.Table.from_batches([batch])
            frame = table.select(list(numbers.values())).rename_columns(list(numbers))
            scores = _predict_rows(model, frame, threads, RowPosition(first, part))
            first += len(scores)
            for index, column in enumerate(scores.T):
                table = table.append_column(f"n{index}", pa.array(np.ascontiguousarray(column)))
            yield from table.to_batches()

    return run


def _predict_dask(model: Scorer, frame: Any, threads: int) -> Any:
    import pandas as pd

    from trueup.cluster.dask import check_workers

    schema, empty = model.schema, frame._meta
    names = [name for name in _required_columns(schema) if name in empty.columns]
    _check_columns(schema, empty[names], [name for name in names if empty[name].dtype == UNTYPED_NUMPY])
    check_workers()
    meta = pd.DataFrame({name: np.empty(0) for name in schema.score_names}, index=empty.index)
    if len(schema.score_names) == 1:
        meta = meta[schema.score_names[0]]
    return frame[names].map_partitions(_predict_partition, model, threads, meta=meta)


def _predict_partition(part: Any, model: Scorer, threads: int, partition_info: Any = None) -> Any:
    import pandas as pd

    names, number = model.schema.score_names, None if partition_info is None else partition_info["number"]
    scores = _predict_rows(model, part, threads, RowPosition(0, number))
    frame = pd.DataFrame(scores, columns=list(names), index=part.index)
    return frame[names[0]] if len(names) == 1 else frame
