"""Completed rounds, saved to a file during a fit, so that an interrupted fit can be resumed; validated as a model file."""

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
from trueup.data.table import Schema
from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray
    from trueup.calibrators.mcgrad.cascade import CascadeRound
    from trueup.data.table import Table

KIND = "trueup checkpoint"
MANIFEST = "checkpoint.json"
MAX_SHOWN = 40  # characters of a value in a message
DIGEST_ROWS = 1 << 20  # rows hashed at a time
_CONTENT_ERRORS = (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)


class Checkpoint:
    """Completed rounds of one fit, in a file that is always complete.

    The fingerprint identifies the fit by its parameters and rows (`fingerprint_table`); the versions of trueup and LightGBM
    are added. Trees are validated against its ``schema``, and their number per round against ``trees``, if present.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._schema: Schema = fingerprint["schema"]
        versions = {"version": version("trueup"), "LightGBM": version("lightgbm")}
        self._fingerprint = {name: _to_json(value) for name, value in {**fingerprint, **versions}.items()}

    def rounds(self, cascades: int | None = None) -> tuple[CascadeRound, ...]:
        """Return the rounds in the file, each of ``cascades`` forests; create it, so that an invalid path fails now."""
        rounds = self._read(cascades) if os.path.exists(self.path) else ()  # noqa: PTH110  (False in unreadable directories)
        self.keep(rounds)
        return rounds

    def keep(self, rounds: Sequence[CascadeRound]) -> None:
        """Write all rounds so far."""
        entries, blobs = pack_rounds(rounds)
        manifest = {"format": 1, "fingerprint": self._fingerprint, "rounds": entries}
        text = json.dumps(manifest, sort_keys=True, allow_nan=False)
        storage.write(self.path, {MANIFEST: text.encode("ascii"), **blobs}, kind=KIND)

    def done(self) -> None:
        """Delete the file after a successful fit; if that fails, the file does no harm."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _read(self, cascades: int | None) -> tuple[CascadeRound, ...]:
        blobs = storage.read(self.path, kind=KIND)
        try:
            manifest = json.loads(blobs.pop(MANIFEST))
            require(manifest["format"] == 1, "it is of another version of trueup")
            stored = manifest["fingerprint"]
            require(isinstance(stored, dict), "it does not identify its fit")
            if stored == self._fingerprint:
                outputs = max(len(self._schema.prediction), 1)
                rounds = unpack_rounds(manifest["rounds"], blobs, self._schema.levels, outputs)
                max_trees = stored.get("trees", np.inf)
                require(all(item.trees <= max_trees for item in rounds), "a round has too many trees")
                complete = cascades is None or all(len(item.forests) == cascades for item in rounds)
                require(complete, "it has another number of folds")
                return rounds
        except (FileContentError, *_CONTENT_ERRORS) as error:
            reason = error if isinstance(error, FileContentError) else "its content is not valid"
            raise FileError(f"cannot read {self.path}: {reason}", hint="remove it, and fit from the start") from None
        raise ArgumentError(
            f"{self.path} has completed rounds of another fit: it differs in {_differences(stored, self._fingerprint)}",
            hint="to resume, pass the same rows and parameters; to start again, remove the file or name another",
        )


def fingerprint_table(table: Table) -> dict[str, Any]:
    """Return the schema and the number of rows of a Table, and digests of its columns."""
    return {
        "schema": table.schema,
        "rows": len(table),
        "features": digest_arrays(*(table.columns[feature.name] for feature in table.schema.features)),
        **{name: digest_arrays(getattr(table, name)) for name in ("prediction", "outcome", "weight")},
    }


def digest_arrays(*arrays: AnyArray | None) -> str:
    """Return the SHA-256 of arrays, reading some rows at a time: they may be larger than memory."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is None:
            digest.update(b"none")
            continue
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        for start in range(0, len(array), DIGEST_ROWS):
            digest.update(np.ascontiguousarray(array[start : start + DIGEST_ROWS]).tobytes())
    return digest.hexdigest()


def _to_json(value: Any) -> Any:
    """Return a value as JSON would return it; for a schema, which may have millions of levels, its digest."""
    if isinstance(value, Schema):  # the names of outcome and weight do not matter: they may be passed as arrays
        plain = asdict(replace(value, outcome=None, weight=None))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode("ascii")).hexdigest()
    if is_dataclass(value) and not isinstance(value, type):
        value = {type(value).__name__: asdict(value)}
    return json.loads(json.dumps(value, default=lambda item: item.item() if isinstance(item, np.generic) else str(item)))


def _differences(stored: Mapping[str, Any], current: Mapping[str, Any]) -> str:
    """List what differs, with the values if they are short."""
    differences = []
    for name in sorted({*stored, *current}, key=str):
        if name in stored and name in current and stored[name] == current[name]:
            continue
        values = [json.dumps(side[name]) if name in side else "nothing" for side in (stored, current)]
        shown = f" ({values[0]} there, {values[1]} here)" if max(map(len, values)) <= MAX_SHOWN else ""
        differences.append(f"{'columns and levels' if name == 'schema' else name[:MAX_SHOWN]}{shown}")
    return ", ".join(differences)
