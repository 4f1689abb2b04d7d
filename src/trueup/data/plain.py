"""Values as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Give a value as JSON can hold it: what is not finite becomes None, an array a list.

    Examples
    --------
    >>> plain({"a": np.array([1.5, np.inf]), "b": (np.int64(2), float("nan"))})
    {'a': [1.5, None], 'b': [2, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
