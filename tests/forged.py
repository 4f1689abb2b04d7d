"""Model files with valid checksums and invalid contents: loading must reject them, or the model must be harmless."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest

import trueup as tu
from trueup import storage
from trueup.errors import FileError, TrueupError
from trueup.modelfile import KIND

__all__ = ["GONE", "STRANGE", "changed", "in_part", "places", "put", "refused", "store", "usable"]

GONE = object()
STRANGE = [GONE, None, [], {}, [[]], "", "NaN", "x", True, 0, -1, 1, 2.5, -1e300, 10**30, 10**400, ["a", "a"], {"a": None}]


def store(path, parts):
    path.unlink(missing_ok=True)
    storage.write(path, parts, kind=KIND)


def refused(path, message=None):
    with pytest.raises(FileError, match=message) as caught:
        tu.load(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def usable(model, data):
    """Use a model in every way: a file that loads must not break anything later."""
    row = {name: column[0] for name, column in data.items()}
    for use in (lambda: model.predict(data), lambda: model.predict_one(row), lambda: repr(model.explain(row))):
        with contextlib.suppress(TrueupError):  # the forged model may need other columns
            use()
    repr(model), repr(model.history), repr(model.explanation), model.history.to_frame(), model.explanation.to_frame()


def places(found, path=()):
    yield path
    if isinstance(found, dict):
        for key in found:
            yield from places(found[key], (*path, key))
    elif isinstance(found, list):
        for at in {0, len(found) - 1} if found else ():
            yield from places(found[at], (*path, at))


def changed(manifest, place, value):
    if not place:
        return value
    out = copy.deepcopy(manifest)
    holder = out
    for key in place[:-1]:
        holder = holder[key]
    if value is GONE:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return out


def in_part(parts, kinds, name, change):
    """Return an array with its numbers changed, by a function that writes to them or returns others."""
    array = np.frombuffer(parts[name], kinds[name]).copy()
    found = change(array)
    return {name: (array if found is None else found).tobytes()}


def put(at, value):
    """Return a change that writes one value."""

    def change(array):
        array[at] = value

    return change
