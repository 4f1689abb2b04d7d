"""Save and load a Model: a JSON manifest and our own arrays in one archive. Nothing in a file is ever run.

The archive has compared every checksum before this module sees a byte. Checksums find damage, not ill will, so the
manifest and the arrays are checked here as if a stranger had written them: kinds, shapes, indices, order.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup import storage
from trueup.calibrators.explain import Explanation
from trueup.calibrators.losses import loss_of
from trueup.calibrators.maps.reading import Refusal, are_numbers, is_whole, require, texts
from trueup.calibrators.model import About, Model
from trueup.calibrators.rounds import History
from trueup.data.schema import Feature, Schema
from trueup.errors import ArgumentError, FileError
from trueup.modelfile import cascade, grouped, levels, local, patches, scores, unchanged

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["FORMAT", "load", "save"]

FORMAT = 1
KIND = "trueup model"
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 32 << 20  # bytes: vocabularies of a million levels
TASKS = ("binary", "regression", "multiclass")
MEASURES = ("log loss", "squared error")
# Kind of map -> the module that writes and reads it.
CODECS: dict[str, Any] = {
    "cascade": cascade,
    "grouped": grouped,
    "levels": levels,
    "local": local,
    "patches": patches,
    "scores": scores,
    "unchanged": unchanged,
}
# Kind of map that cannot be written -> what to use instead.
OUR_OWN = {
    "foreign": 'learner="tree" or learner="linear"',
    "foreign embedding": 'embedding="pca", or run the transformer beforehand and use embedding="columns"',
}


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Save a model, or what a calibrator has fitted, into one file.

    The file is written whole or not at all: an interrupted save leaves what was there before. The same model makes the
    same bytes.

    Parameters
    ----------
    model : Model or fitted calibrator
    path : str or path
        ``.trueup`` is the usual ending.

    Examples
    --------
    >>> import tempfile, trueup as tu
    >>> data = tu.simulate.lending(5_000, seed=1)
    >>> fix = tu.MCGrad("prediction", features=["region", "age"]).fit(data, data["outcome"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tu.save(fix, folder + "/lending.trueup")
    ...     again = tu.load(folder + "/lending.trueup")
    >>> bool((again.predict(data) == fix.predict(data)).all())
    True
    """
    found = _model_of(model)
    if found.map.kind not in CODECS:
        raise ArgumentError(
            f"a model made of {found.map.describe()} cannot be saved: it holds objects of another library",
            hint=f"only what is made of our own arrays is saved: use {OUR_OWN[found.map.kind]}",
        )
    entry, parts = CODECS[found.map.kind].write(found.map)
    manifest = {
        "format": FORMAT,
        "about": asdict(found.about),
        "schema": asdict(found.schema),
        "map": {"kind": found.map.kind, **entry},
        "history": found.history.to_dict(),
        "explanation": found.explanation.to_dict(),
    }
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    storage.write(path, {MANIFEST: text.encode("utf-8", "surrogatepass"), **parts}, kind=KIND)


def _model_of(model: Any) -> Model:
    found = model if isinstance(model, Model) else getattr(model, "model_", None)
    if isinstance(found, Model):
        return found
    if isinstance(getattr(getattr(model, "calibrator_", None), "model_", None), Model):
        raise ArgumentError(
            f"this {type(model).__name__} holds an estimator of another library, which a model file cannot",
            hint="save its correction alone, tu.save(model.calibrator_, path), and the estimator as its library does",
        )
    if hasattr(model, "fit") and hasattr(model, "predict"):
        raise ArgumentError(
            f"this {type(model).__name__} has no model to save",
            hint="call fit(frame, outcome) first; only trueup's own calibrators can be saved",
        )
    raise ArgumentError(
        f"save takes a fitted calibrator or a Model; got {type(model).__name__}", hint='write tu.save(fix, "model.trueup")'
    )


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model. A file that is damaged, foreign or of a later version is refused with a `FileError`.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Model
    """
    parts = storage.read(path, kind=KIND)
    try:
        model = _read(parts)
    except Refusal as refusal:
        raise FileError(f"{Path(path)}: {refusal}", hint="save the model again with this version of trueup") from None
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError, AttributeError, IndexError) as error:
        raise FileError(
            f"{Path(path)} is not a model that trueup wrote ({type(error).__name__})",
            hint="name a file that tu.save or trueup fit wrote",
        ) from None
    return replace(model, file=(FORMAT, Path(path).stat().st_size))


def _read(parts: Mapping[str, bytes]) -> Model:
    require(len(parts[MANIFEST]) <= LARGEST_MANIFEST, "its manifest is too large to be one")
    manifest = json.loads(parts[MANIFEST].decode("utf-8", "surrogatepass"), parse_constant=_no_constant)
    version = manifest["format"]
    if not is_whole(version) or version < 1:
        raise Refusal(f"the format {version!r} is none that trueup writes")
    if version > FORMAT:
        raise Refusal(f"it has format {version}, of a later version of trueup; this one reads up to {FORMAT}")
    schema = _schema(manifest["schema"])
    history, explanation = _history(manifest["history"], schema), _explanation(manifest["explanation"])
    about = _about(manifest["about"])
    kind = manifest["map"]["kind"]
    require(isinstance(kind, str) and kind in CODECS, f"a map of kind {kind!r} is unknown")
    require(bool(schema.prediction) or kind == "levels", "no column is the prediction")  # level sets may begin at the mean
    others = {name: part for name, part in parts.items() if name != MANIFEST}
    found = CODECS[kind].read(manifest["map"], schema, others)
    require(history.chosen == found.steps, "its history does not belong to its rounds")
    return Model(schema, found, history, explanation, about)


def _no_constant(text: str) -> float:
    raise Refusal(f"it holds the number {text}")


def _schema(found: Any) -> Schema:
    features = []
    for one in found["features"]:
        levels = texts(one["levels"], "levels")
        require(isinstance(one["name"], str) and one["kind"] in ("categorical", "numeric", "date"), "a feature is wrong")
        require(len(set(levels)) == len(levels) and (not levels or one["kind"] == "categorical"), "levels are wrong")
        features.append(Feature(one["name"], one["kind"], levels))
    prediction, classes = texts(found["prediction"], "predictions"), texts(found["classes"], "classes")
    task, outcome, weight = found["task"], found["outcome"], found["weight"]
    require(task in TASKS, "the task is unknown")
    require(all(role is None or isinstance(role, str) for role in (outcome, weight)), "a role is wrong")
    for names in (prediction, [feature.name for feature in features]):  # the prediction may be a feature as well
        require(len(set(names)) == len(names), "a column is named twice")
    several = task == "multiclass"
    require(len(prediction) > 1 if several else len(prediction) <= 1, "the predictions do not fit the task")
    require(len(classes) == (len(prediction) if several else 0), "the classes do not fit the predictions")
    return Schema(task, outcome, prediction, weight, tuple(features), classes)


def _history(found: Any, schema: Schema) -> History:
    # Files of before measures were named hold a cascade, which is judged by the loss of its task.
    history = History.from_dict({"measure": loss_of(schema.task).measure, **found})
    require(history.measure in MEASURES, "the history is wrong")
    require(is_whole(history.chosen) and 0 <= history.chosen < len(history.rounds), "the chosen round is not there")
    for at, one in enumerate(history.rounds):
        require(are_numbers(one.theta, one.loss, one.gain, one.error, one.trees), "a round is wrong")
        require(one.number == at and is_whole(one.trees) and isinstance(one.kept, bool), "a round is wrong")
    require(isinstance(history.reason, str) and isinstance(history.judged_by, str), "the history is wrong")
    return history


def _explanation(found: Any) -> Explanation:
    explanation = Explanation.from_dict(found)
    for one in explanation.corrections:
        numbers = (one.low, one.high, one.rows, one.share, one.before, one.after, one.observed)
        require(isinstance(one.segment, str) and are_numbers(*numbers) and is_whole(one.rows), "a correction is wrong")
    totals = (explanation.rows, explanation.moved, explanation.accounted)
    require(are_numbers(*totals) and is_whole(explanation.rows), "the explanation is wrong")
    return explanation


def _about(found: Any) -> About:
    about = About(**found)
    texts = (about.method, about.fitted, about.version)
    require(all(isinstance(text, str) for text in texts), "what it says about itself is wrong")
    require(is_whole(about.rows) and about.rows >= 0, "the number of rows it was fitted on is wrong")
    require(isinstance(about.parameters, dict), "its parameters are wrong")
    return about
