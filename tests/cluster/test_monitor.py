"""Monitors of Spark frames: the same answer as in memory."""

from __future__ import annotations

import trueup as tu
from logs import SETTINGS, comparable, make_log


def test_a_spark_frame_gives_the_answer_of_rows_in_memory(spark):
    import pandas as pd

    data = make_log(3, 1_500, factor=2.5, since=60)
    settings = {**SETTINGS, "period": "28 days"}
    expected = tu.Monitor(**settings).start(data).update(data)
    frame = spark.createDataFrame(pd.DataFrame(data).sample(frac=1, random_state=1))
    report = tu.Monitor(**settings).start(data).update(frame)
    assert expected.alarms
    assert comparable(report) == comparable(expected)
    assert report.rows == expected.rows
