"""The parent of Spark's Python workers in tests: imports once what they all need.

Workers are forked from it, and collect garbage after every task: frozen objects are not searched each time.
"""

import gc

import pandas as pd  # noqa: F401
import pyarrow as pa  # noqa: F401
from pyspark.daemon import manager

import trueup.audits.audit
import trueup.cluster.spark  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
