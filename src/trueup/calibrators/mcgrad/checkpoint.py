"""Finished rounds, kept in a file while a fit goes on: one that was stopped does not grow them again.

Nothing in the file is ever run: it is an archive whose every byte has a checksum, and its trees are checked as those of a
model file are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup import storage
from trueup.calibrators.map import FileContentError, require
from trueup.calibrators.mcgrad.cascade import pack_rounds, unpack_rounds
from trueup.data.schema import Schema
from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray
    from trueup.calibrators.mcgrad.cascade import CascadeRound
    from trueup.data.table import Table

KIND = "trueup checkpoint"
MANIFEST = "checkpoint.json"
SHORT = 40  # letters of a value that a message shows
_WRONG = (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
BATCH = 1 << 20  # numbers that are read at a time


class Checkpoint:
    """Finished rounds of one fit, in a file that is written whole or not at all.

    Parameters
    ----------
    path : path
        The file. Its directory must exist.
    fingerprint : mapping of str to Any
        What makes this the fit it is: parameters, the rows and what they hold (`content_of`). ``schema`` must be among it:
        a Schema, against which trees are checked; ``trees``, if it is, the most that a round may have. The versions of
        trueup and LightGBM are added.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._schema: Schema = fingerprint["schema"]
        told = {**fingerprint, "version": version("trueup"), "LightGBM": version("lightgbm")}
        self._fingerprint: dict[str, Any] = {name: _plain(value) for name, value in told.items()}

    def rounds(self, cascades: int | None = None) -> tuple[CascadeRound, ...]:
        """Give the rounds that the file has; where there is none, it is begun, so that what cannot be written shows now.

        Parameters
        ----------
        cascades : int, optional
            How many forests each round must have.

        Raises
        ------
        ArgumentError
            If the file is of another fit.
        FileError
            If it is damaged, is another kind of file, or cannot be read or written.
        """
        found = self._read(cascades) if os.path.exists(self.path) else ()  # noqa: PTH110  (no error where a folder is closed)
        self.keep(found)
        return found

    def keep(self, rounds: Sequence[CascadeRound]) -> None:
        """Write all rounds so far."""
        entries, parts = pack_rounds(rounds)
        manifest = {"format": 1, "fingerprint": self._fingerprint, "rounds": entries}
        text = json.dumps(manifest, sort_keys=True, allow_nan=False)
        storage.write(self.path, {MANIFEST: text.encode("ascii"), **parts}, kind=KIND)

    def done(self) -> None:
        """Remove the file: the fit has ended well. One that cannot be removed stays, and does no harm."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _read(self, cascades: int | None) -> tuple[CascadeRound, ...]:
        parts = storage.read(self.path, kind=KIND)
        try:
            manifest = json.loads(parts.pop(MANIFEST))
            require(manifest["format"] == 1, "it is of another version of trueup")
            theirs = manifest["fingerprint"]
            require(isinstance(theirs, dict), "it does not say of which fit it is")
            if theirs == self._fingerprint:
                outputs = max(len(self._schema.prediction), 1)
                found = unpack_rounds(manifest["rounds"], parts, self._schema.levels, outputs)
                most = theirs.get("trees", np.inf)
                require(all(one.trees <= most for one in found), "a round has more trees than it may")
                require(cascades is None or all(len(one.forests) == cascades for one in found), "it has other folds")
                return found
        except (FileContentError, *_WRONG) as error:
            why = error if isinstance(error, FileContentError) else "it is not as trueup writes it"
            raise FileError(f"cannot read {self.path}: {why}", hint="remove it, and fit from the start") from None
        raise ArgumentError(
            f"{self.path} has finished rounds of another fit: it differs in {_differences(theirs, self._fingerprint)}",
            hint="to go on, give the rows and parameters it was begun with; to begin anew, remove it or name another file",
        )


def content_of(table: Table) -> dict[str, Any]:
    """Say what a Table holds: its schema and the number of its rows as they are, the columns by their digests."""
    return {
        "schema": table.schema,
        "rows": len(table),
        "features": digest(*(table.columns[one.name] for one in table.schema.features)),
        **{name: digest(getattr(table, name)) for name in ("prediction", "outcome", "weight")},
    }


def digest(*arrays: AnyArray | None) -> str:
    """Give the SHA-256 of arrays, some rows at a time: they may be larger than memory."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode())
        for start in range(0, 0 if array is None else len(array), BATCH):
            assert array is not None
            found.update(np.ascontiguousarray(array[start : start + BATCH]).tobytes())
    return found.hexdigest()


def _plain(value: Any) -> Any:
    """Write a value as JSON gives it back; of a schema, which may have millions of levels, the digest.

    What the outcome and the weight are called makes no difference: they may be given as arrays.
    """
    if isinstance(value, Schema):
        plain = asdict(replace(value, outcome=None, weight=None))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode("ascii")).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        value = {type(value).__name__: asdict(value)}
    return json.loads(json.dumps(value, default=lambda one: one.item() if isinstance(one, np.generic) else str(one)))


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Name what differs, with the values where they are short and say something."""
    found = []
    for name in sorted({*theirs, *ours}, key=str):
        if name in theirs and name in ours and theirs[name] == ours[name]:
            continue
        shown = [json.dumps(one[name]) if name in one else "nothing" for one in (theirs, ours)]
        told = f" ({shown[0]} there, {shown[1]} here)" if max(map(len, shown)) <= SHORT else ""
        found.append(f"{'columns and levels' if name == 'schema' else name[:SHORT]}{told}")
    return ", ".join(found)
