"""Save and load a Model: a JSON manifest and binary arrays in one archive. Nothing in a file is ever executed.

The archive verifies every checksum before this module reads a byte. Checksums detect damage, not malice, so manifest and
arrays are validated as untrusted input: types, shapes, indices and order. Each class in `MAPS` packs and unpacks itself.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup import storage
from trueup.calibrators.curves.linear import LinearMap
from trueup.calibrators.curves.linear_groups import LinearGroups
from trueup.calibrators.curves.map import GROUPED, CurveMap
from trueup.calibrators.evidence import PREFIX, HeldOutEvidence
from trueup.calibrators.explain import Explanation
from trueup.calibrators.history import History
from trueup.calibrators.lore.map import LocalMap
from trueup.calibrators.lsboost.levelsets import LevelSets
from trueup.calibrators.matrix.map import MatrixMap
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.model import FileContentError, FitRecord, Model, UnchangedMap, check_fields, read_texts, require
from trueup.calibrators.patches.map import PatchMap
from trueup.calibrators.prior.map import OddsMap
from trueup.calibrators.stopping import task_loss
from trueup.data.table import Feature, Schema, remember_cross_fitted
from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from trueup.calibrators.model import Map


FORMAT = 2  # 2: predictions may be logits, and probabilities smaller than 1e-6 count as they are
KIND = "trueup model"
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 32 << 20  # enough for vocabularies of a million levels
TASKS = ("binary", "regression", "multiclass")
MAX_MEASURE = 200  # characters of the name of a loss
MAPS: dict[str, type[Map]] = {
    GROUPED: CurveMap,
    **{
        cls.kind: cls
        for cls in (
            Cascade,
            CurveMap,
            LevelSets,
            LinearGroups,
            LinearMap,
            LocalMap,
            MatrixMap,
            OddsMap,
            PatchMap,
            UnchangedMap,
        )
    },
}


def save(model: Any, path: storage.Target, *, evidence: bool = False) -> None:
    """Save a model, or the model of a fitted calibrator, to one file.

    The file is written atomically: an interrupted save leaves the old file. Equal models are saved as equal bytes: a fit of
    the same rows by the same versions is, whatever the number of threads. The file has the day of the fit (UTC); set
    ``SOURCE_DATE_EPOCH`` before the fit to state another one.

    Parameters
    ----------
    model : Model or fitted calibrator
    path : str, path or binary file object
        The usual suffix is ``.trueup``. With a file object, such as ``io.BytesIO()``, the model can be kept as bytes in a
        database or an object store.
    evidence : bool
        Keep the held-out outcomes and scores of the calibrator (its weights and clusters, too) in the file, so that the
        loaded model can be ``labelled=`` in `trueup.decisions`. Off by default, because such a file holds data of the
        training rows: treat it like these. ``model.info().evidence`` is their number.

    Examples
    --------
    >>> import tempfile, trueup as tu
    >>> data = tu.simulate.lending(5_000, seed=1)
    >>> fix = tu.MCGrad("prediction", features=["region", "age"]).fit(data, data["outcome"])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tu.save(fix, directory + "/lending.trueup")
    ...     again = tu.load(directory + "/lending.trueup")
    >>> bool((again.predict(data) == fix.predict(data)).all())
    True
    >>> import io
    >>> buffer = io.BytesIO()
    >>> tu.save(fix, buffer)
    >>> bool((tu.load(buffer.getvalue()).predict(data) == fix.predict(data)).all())
    True
    """
    saved = model_of(model)
    if saved.map.unsavable_hint is not None:
        raise ArgumentError(
            f"a model made of {saved.map.describe()} cannot be saved: it holds objects of another library",
            hint=f"only trueup's own arrays can be saved: use {saved.map.unsavable_hint}",
        )
    entry, blobs = saved.map.pack()
    kept, arrays = HeldOutEvidence.of(model).pack() if evidence else (None, {})
    manifest = {
        "format": FORMAT,
        "about": asdict(saved.about),
        "schema": _pack_schema(saved.schema),
        "map": {"kind": saved.map.kind, **entry},
        "history": saved.history.to_dict(),
        "explanation": saved.explanation.to_dict(),
        **({} if kept is None else {"evidence": kept}),
    }
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    storage.write(path, {MANIFEST: text.encode("utf-8", "surrogatepass"), **blobs, **arrays}, kind=KIND)


def model_of(model: Any) -> Model:
    """Return a Model, or that of a fitted calibrator; raise if there is none that can be saved."""
    fitted = model if isinstance(model, Model) else getattr(model, "model_", None)
    if isinstance(fitted, Model):
        return fitted
    name = type(model).__name__
    if isinstance(getattr(getattr(model, "calibrator_", None), "model_", None), Model):
        raise ArgumentError(
            f"this {name} holds an estimator of another library, which a model file cannot store",
            hint="save its correction alone, tu.save(model.calibrator_, path), and the estimator as its library does",
        )
    if hasattr(model, "fit") and hasattr(model, "predict"):
        raise ArgumentError(
            f"this {name} has no model to save",
            hint="call fit(frame, outcome) first; only trueup's own calibrators can be saved",
        )
    raise ArgumentError(f"save takes a fitted calibrator or a Model; got {name}", hint='write tu.save(fix, "model.trueup")')


def load(path: storage.Source, *, stats: bool = False) -> Model:
    """Load a model; raise `FileError` if the file is damaged, not a model, or of a later version.

    Parameters
    ----------
    path : str, path, bytes or binary file object
        Bytes are the content of a file that `save` wrote, not a path. A file object is read from its position to its end.
    stats : bool
        Count the rows that the model scores, and their missing and unseen values: ``model.stats()`` returns the counts.

    Returns
    -------
    Model
    """
    source = path if isinstance(path, (str, os.PathLike)) else storage.read_bytes(path)
    blobs, name = storage.read(source, kind=KIND), storage.describe_source(source)
    try:
        model, version = _read(blobs)
    except FileContentError as error:
        raise FileError(f"{name}: {error}", hint="save the model again with this version of trueup") from None
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError, AttributeError, IndexError) as error:
        raise FileError(
            f"{name} is not a model file of trueup ({type(error).__name__})",
            hint="name a file written by tu.save or trueup fit",
        ) from None
    model = replace(model, file=(version, len(source) if isinstance(source, bytes) else Path(source).stat().st_size))
    return model.with_stats() if stats else model


def _read(blobs: dict[str, bytes]) -> tuple[Model, int]:
    """Return the model of a file and the version of its format."""
    text = blobs.pop(MANIFEST)
    require(len(text) <= MAX_MANIFEST_BYTES, "its manifest is too large")
    manifest = json.loads(text.decode("utf-8", "surrogatepass"), parse_constant=_reject_constant)
    version = manifest["format"]
    require(type(version) is int and version >= 1, f"the format {version!r} is unknown")
    require(version <= FORMAT, f"it has format {version} of a later version of trueup; this version reads up to {FORMAT}")
    schema = _read_schema(manifest["schema"])
    history = _read_history(manifest["history"], schema)
    unit = "change" if schema.task == "regression" else "points"
    explanation = Explanation.from_dict(manifest["explanation"], unit)
    require(explanation.unit == unit, "the unit of its explanation is invalid")
    record = FitRecord(**manifest["about"])
    check_fields(record, explanation, *explanation.corrections, *explanation.excluded)
    require(record.rows >= 0 and isinstance(record.parameters, dict), "the record of the fit is invalid")
    entry = manifest["map"]
    kind = entry["kind"]
    require(isinstance(kind, str) and kind in MAPS, f"a map of kind {kind!r} is unknown")
    # Level sets may start from the mean outcome; every other map corrects a prediction.
    require(bool(schema.prediction) or kind == LevelSets.kind, "it has no prediction column")
    arrays = {name: blobs.pop(name) for name in list(blobs) if name.startswith(PREFIX)}
    restored: Map = MAPS[kind].unpack(entry, schema, blobs)
    require(history.chosen == restored.steps, "its history does not match its rounds")
    kept = manifest.get("evidence")
    require(kept is not None or not arrays, "it has arrays that the manifest does not list")
    evidence = None if kept is None else HeldOutEvidence.unpack(kept, schema, arrays)
    if evidence is not None and history.is_cross_fit:
        remember_cross_fitted(evidence.scored.p)
    return Model(schema, restored, history, explanation, record, evidence=evidence), version


def _reject_constant(text: str) -> float:
    raise FileContentError(f"it contains the number {text}")


def _pack_schema(schema: Schema) -> dict[str, Any]:
    """Return a schema as plain data; only features that have a level of unseen values state it."""
    entry = asdict(schema)
    for feature in entry["features"]:
        if not feature["unseen_level"]:
            del feature["unseen_level"]
    return entry


def _read_schema(entry: Any) -> Schema:
    features = []
    for item in entry["features"]:
        levels = read_texts(item["levels"], "levels")
        require(isinstance(item["name"], str), "a feature is invalid")
        require(item["kind"] in ("categorical", "numeric", "date"), "a feature is invalid")
        require(len(set(levels)) == len(levels) and (not levels or item["kind"] == "categorical"), "levels are invalid")
        unseen = item.get("unseen_level", False)
        valid = isinstance(unseen, bool) and (len(levels) > 0 or not unseen)
        require(valid, "the level of unseen values is invalid")
        features.append(Feature(item["name"], item["kind"], levels, unseen))
    prediction, classes = read_texts(entry["prediction"], "predictions"), read_texts(entry["classes"], "classes")
    task, outcome, weight = entry["task"], entry["outcome"], entry["weight"]
    require(task in TASKS, "the task is unknown")
    require(all(role is None or isinstance(role, str) for role in (outcome, weight)), "a role is invalid")
    for names in (prediction, [feature.name for feature in features]):  # the prediction may be a feature as well
        require(len(set(names)) == len(names), "a column name appears twice")
    multiclass = task == "multiclass"
    require(len(prediction) > 1 if multiclass else len(prediction) <= 1, "the predictions do not match the task")
    require(len(classes) == (len(prediction) if multiclass else 0), "the classes do not match the predictions")
    logits = entry.get("logits", False)  # absent in format 1
    require(isinstance(logits, bool) and not (logits and (task == "regression" or not prediction)), "logits are invalid")
    return Schema(task, outcome, prediction, weight, tuple(features), classes, logits=logits)


def _read_history(entry: Any, schema: Schema) -> History:
    # The first files did not name the measure; they hold cascades, evaluated by the loss of their task.
    history = History.from_dict({"measure": task_loss(schema.task).measure, **entry})
    check_fields(history, *history.rounds, *history.capacities)
    require(0 < len(history.measure) <= MAX_MEASURE, "the history is invalid")
    require(0 <= history.chosen < len(history.rounds), "the chosen round is missing")
    require(all(round_.number == number for number, round_ in enumerate(history.rounds)), "a round is invalid")
    return history
