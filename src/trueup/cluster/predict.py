"""A model's predictions on the frames of a cluster: lazy, every partition where it lies, the bits that memory gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.cluster.partitions import engine_of, need
from trueup.data import checks
from trueup.data.checks import RowPosition
from trueup.data.frame import open_source, read_like
from trueup.errors import ColumnError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import FloatArray
    from trueup.data.schema import Schema
    from trueup.data.table import Table

UNTYPED, OBJECTS = "null", "object"  # Arrow's and NumPy's words for types that say nothing of the values


class Scorer(Protocol):
    """A model, as far as it is needed here."""

    @property
    def schema(self) -> Schema:
        """Say which columns it reads."""

    def predict_table(self, table: Table, *, threads: int | None = None) -> FloatArray:
        """Correct the predictions of a Table."""


def predict_cluster_frame(model: Scorer, data: Any, threads: int | None = None) -> Any:
    """Correct the predictions of a frame of Spark or Dask, when it is computed.

    Returns
    -------
    pyspark.sql.DataFrame
        The frame with one more column, ``p_trueup`` for a prediction ``p``; with one for each of several classes.
    or dask.dataframe.Series
        The corrected predictions by the index of the frame; a DataFrame of one column a class for several classes.
    """
    engine = engine_of(data)
    assert engine is not None
    need(engine)
    # A task has one core, however many the machine has.
    return (_on_spark if engine == "spark" else _on_dask)(model, data, threads or 1)


def _score(model: Scorer, frame: Any, threads: int, first: int, part: int | None) -> FloatArray:
    """Correct the predictions of some rows of one partition: one column for each new one."""
    if not len(frame):
        return np.empty((0, len(model.schema.score_names)))
    table = read_like(frame, model.schema, RowPosition(first, part))
    return model.predict_table(table, threads=threads).reshape(len(table), len(model.schema.score_names))


def _needed(schema: Schema) -> list[str]:
    return list(dict.fromkeys([*schema.prediction, *(feature.name for feature in schema.features)]))


def _check(schema: Schema, empty: Any, untyped: Sequence[str]) -> None:
    """Check that the columns of a frame without rows are those that a model needs, by names and types."""
    source = open_source(empty)
    read_like({key: np.empty(0) for key in source.keys}, schema)  # tells which are not there
    kinds = {name: source.fetch(name) for name in _needed(schema) if name not in untyped}
    for name in schema.prediction:
        if name in kinds and kinds[name].kind in ("text", "date"):
            raise DataError(
                f"prediction column {name!r} must hold numbers; got {kinds[name].kind}s", hint="convert the column first"
            )
    for feature in schema.features:
        if feature.name in kinds:
            checks.check_kind(kinds[feature.name], feature)


def _on_spark(model: Scorer, frame: Any, threads: int) -> Any:
    from pyspark.sql.types import DoubleType, StructField, StructType

    from trueup.cluster import spark as frames

    schema, names = model.schema, list(frame.columns)
    there = [name for name in _needed(schema) if name in names]
    types = frames.arrow_types(frame, there)
    _check(schema, frames.without_rows(types), [name for name, kind in types.items() if kind == UNTYPED])
    folded = {name.lower() for name in names}
    for name in schema.score_names:
        if name.lower() in folded:
            raise ColumnError(f"there is a column {name!r} already", hint="rename it, or drop it first")
    with frames.telling():
        plain = frames.numbered(frame)
        new = [StructField(f"n{at}", DoubleType(), nullable=False) for at in range(len(schema.score_names))]
        made = plain.mapInArrow(_adding_scores(model, names, threads), StructType([*plain.schema.fields, *new]))
        return made.toDF(*names, *schema.score_names)


def _adding_scores(model: Scorer, names: list[str], threads: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    needed = {name: f"c{names.index(name)}" for name in _needed(model.schema)}

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from trueup.cluster.spark import part_number

        first, part = 0, part_number()
        for batch in batches:
            table = pa.Table.from_batches([batch])
            scores = _score(model, table.select(list(needed.values())).rename_columns(list(needed)), threads, first, part)
            first += len(scores)
            for at, column in enumerate(scores.T):
                table = table.append_column(f"n{at}", pa.array(np.ascontiguousarray(column)))
            yield from table.to_batches()

    return run


def _on_dask(model: Scorer, frame: Any, threads: int) -> Any:
    import pandas as pd

    from trueup.cluster.dask import workers_are_able

    schema, empty = model.schema, frame._meta
    there = [name for name in _needed(schema) if name in empty.columns]
    _check(schema, empty[there], [name for name in there if empty[name].dtype == OBJECTS])
    workers_are_able()
    columns = {name: np.empty(0) for name in schema.score_names}
    meta = pd.DataFrame(columns, index=empty.index)
    if len(columns) == 1:
        meta = meta[schema.score_names[0]]
    return frame[there].map_partitions(_frame_of_scores, model, threads, meta=meta)


def _frame_of_scores(part: Any, model: Scorer, threads: int, partition_info: Any = None) -> Any:
    import pandas as pd

    names, number = model.schema.score_names, None if partition_info is None else partition_info["number"]
    scores = pd.DataFrame(_score(model, part, threads, 0, number), columns=list(names), index=part.index)
    return scores[names[0]] if len(names) == 1 else scores
