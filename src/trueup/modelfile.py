"""Save and load a Model: a JSON manifest and our own arrays in one archive. Nothing in a file is ever run.

The archive has compared every checksum before this module sees a byte. Checksums find damage, not ill will, so the
manifest and the arrays are checked here as if a stranger had written them: kinds, shapes, indices, order.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup import storage
from trueup.calibrators.explain import Explanation
from trueup.calibrators.losses import THETA, loss_of
from trueup.calibrators.maps import Cascade, CascadeRound
from trueup.calibrators.model import About, Model
from trueup.calibrators.rounds import History
from trueup.data.schema import Feature, Schema
from trueup.errors import ArgumentError, FileError
from trueup.kernels.trees import DEEPEST, Forest

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["FORMAT", "load", "save"]

FORMAT = 1
KIND = "trueup model"
MANIFEST = "manifest.json"
LARGEST_MANIFEST = 32 << 20  # bytes: vocabularies of a million levels
KINDS = {
    "root": "<i4", "output": "<i4", "feature": "<i4", "threshold": "<f8", "left": "<i4", "right": "<i4",
    "missing_left": "|u1", "words_at": "<i4", "words_in": "<i4", "words": "<u4", "value": "<f8",
}  # fmt: skip
PER_TREE, PER_NODE = ("root", "output"), ("feature", "threshold", "left", "right", "missing_left", "words_at", "words_in")
TASKS = ("binary", "regression", "multiclass")


class _Refusal(Exception):  # noqa: N818  (never leaves this module: it becomes a FileError that names the file)
    pass


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
    forests = [forest.arrays() for one in found.map.rounds for forest in one.forests]
    parts = {
        f"forests/{name}": b"".join(np.ascontiguousarray(arrays[name], kind).tobytes() for arrays in forests)
        for name, kind in KINDS.items()
        if forests
    }
    table = [
        {
            "theta": one.theta,
            "trees": one.trees,
            "forests": [{name: len(array) for name, array in forest.arrays().items()} for forest in one.forests],
        }
        for one in found.map.rounds
    ]
    manifest = {
        "format": FORMAT,
        "about": asdict(found.about),
        "schema": asdict(found.schema),
        "map": {"kind": "cascade", "link": found.map.link, "outputs": found.map.outputs, "rounds": table},
        "history": found.history.to_dict(),
        "explanation": found.explanation.to_dict(),
    }
    text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    storage.write(path, {MANIFEST: text.encode("utf-8", "surrogatepass"), **parts}, kind=KIND)


def _model_of(model: Any) -> Model:
    found = model if isinstance(model, Model) else getattr(model, "model_", None)
    if isinstance(found, Model):
        return found
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
    except _Refusal as refusal:
        raise FileError(f"{Path(path)}: {refusal}", hint="save the model again with this version of trueup") from None
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError, AttributeError, IndexError) as error:
        raise FileError(
            f"{Path(path)} is not a model that trueup wrote ({type(error).__name__})",
            hint="name a file that tu.save or trueup fit wrote",
        ) from None
    return replace(model, file=(FORMAT, Path(path).stat().st_size))


def _read(parts: Mapping[str, bytes]) -> Model:
    _require(len(parts[MANIFEST]) <= LARGEST_MANIFEST, "its manifest is too large to be one")
    manifest = json.loads(parts[MANIFEST].decode("utf-8", "surrogatepass"), parse_constant=_no_constant)
    version = manifest["format"]
    if not _is_whole(version) or version < 1:
        raise _Refusal(f"the format {version!r} is none that trueup writes")
    if version > FORMAT:
        raise _Refusal(f"it has format {version}, of a later version of trueup; this one reads up to {FORMAT}")
    schema = _schema(manifest["schema"])
    history, explanation = _history(manifest["history"]), _explanation(manifest["explanation"])
    about = _about(manifest["about"])
    cascade = _cascade(manifest["map"], schema, parts)
    _require(history.chosen == len(cascade.rounds), "its history does not belong to its rounds")
    return Model(schema, cascade, history, explanation, about)


def _no_constant(text: str) -> float:
    raise _Refusal(f"it holds the number {text}")


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    if not holds:
        raise _Refusal(otherwise)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_numbers(*values: object) -> bool:
    """Say whether all are finite numbers; JSON has whole numbers of any size, and reads 1e999 as infinite."""
    try:
        return all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in values)
    except OverflowError:
        return False


def _texts(found: Any, what: str) -> tuple[str, ...]:
    _require(isinstance(found, list) and all(isinstance(text, str) for text in found), f"{what} must be texts")
    return tuple(found)


def _schema(found: Any) -> Schema:
    features = []
    for one in found["features"]:
        levels = _texts(one["levels"], "levels")
        _require(isinstance(one["name"], str) and one["kind"] in ("categorical", "numeric", "date"), "a feature is wrong")
        _require(len(set(levels)) == len(levels) and (not levels or one["kind"] == "categorical"), "levels are wrong")
        features.append(Feature(one["name"], one["kind"], levels))
    prediction, classes = _texts(found["prediction"], "predictions"), _texts(found["classes"], "classes")
    task, outcome, weight = found["task"], found["outcome"], found["weight"]
    _require(task in TASKS, "the task is unknown")
    _require(all(role is None or isinstance(role, str) for role in (outcome, weight)), "a role is wrong")
    names = [*prediction, *(feature.name for feature in features)]
    _require(len(set(names)) == len(names) and len(prediction) >= 1, "a column is named twice, or none is the prediction")
    several = task == "multiclass"
    _require(len(prediction) > 1 if several else len(prediction) == 1, "the predictions do not fit the task")
    _require(len(classes) == (len(prediction) if several else 0), "the classes do not fit the predictions")
    return Schema(task, outcome, prediction, weight, tuple(features), classes)


def _history(found: Any) -> History:
    history = History.from_dict(found)
    _require(_is_whole(history.chosen) and 0 <= history.chosen < len(history.rounds), "the chosen round is not there")
    for at, one in enumerate(history.rounds):
        _require(_are_numbers(one.theta, one.loss, one.gain, one.error, one.trees), "a round is wrong")
        _require(one.number == at and _is_whole(one.trees) and isinstance(one.kept, bool), "a round is wrong")
    _require(isinstance(history.reason, str) and isinstance(history.judged_by, str), "the history is wrong")
    return history


def _explanation(found: Any) -> Explanation:
    explanation = Explanation.from_dict(found)
    for one in explanation.corrections:
        numbers = (one.low, one.high, one.rows, one.share, one.before, one.after, one.observed)
        _require(isinstance(one.segment, str) and _are_numbers(*numbers) and _is_whole(one.rows), "a correction is wrong")
    totals = (explanation.rows, explanation.moved, explanation.accounted)
    _require(_are_numbers(*totals) and _is_whole(explanation.rows), "the explanation is wrong")
    return explanation


def _about(found: Any) -> About:
    about = About(**found)
    texts = (about.method, about.fitted, about.version)
    _require(all(isinstance(text, str) for text in texts), "what it says about itself is wrong")
    _require(_is_whole(about.rows) and about.rows >= 0, "the number of rows it was fitted on is wrong")
    _require(isinstance(about.parameters, dict), "its parameters are wrong")
    return about


def _cascade(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> Cascade:
    _require(found["kind"] == "cascade", f"a map of kind {found['kind']!r} is unknown")
    _require(
        found["link"] == loss_of(schema.task).link and found["outputs"] == len(schema.prediction), "the map does not fit"
    )
    expected = {f"forests/{name}" for name in KINDS} if found["rounds"] else set()
    _require({MANIFEST, *expected} == set(parts), "it has parts that it does not speak of")
    stored = {name: np.frombuffer(parts[f"forests/{name}"], np.dtype(kind)) for name, kind in KINDS.items() if expected}
    begin = dict.fromkeys(KINDS, 0)
    rounds: list[CascadeRound] = []
    for at, one in enumerate(found["rounds"]):
        theta = one["theta"]
        _require(isinstance(theta, float) and THETA[0] / THETA[1] <= theta <= THETA[1] / THETA[0], "a factor is wrong")
        _require(_is_whole(one["trees"]) and one["trees"] >= 0 and len(one["forests"]) >= 1, "a round is empty")
        _require(not rounds or len(one["forests"]) == len(rounds[0].forests), "rounds differ in their number of cascades")
        forests = []
        for which, sizes in enumerate(one["forests"]):
            forest = _forest(f"forest {which} of round {at + 1}", sizes, stored, begin)
            _check_forest(forest, f"forest {which} of round {at + 1}", schema.levels, len(schema.prediction))
            forests.append(forest)
        rounds.append(CascadeRound(theta, tuple(forests), one["trees"]))
    _require(all(begin[name] == len(array) for name, array in stored.items()), "it has trees that no round speaks of")
    return Cascade(found["link"], schema.levels, len(schema.prediction), tuple(rounds))


def _forest(place: str, sizes: Any, stored: Mapping[str, NDArray[Any]], begin: dict[str, int]) -> Forest:
    """Cut the next forest off the stored arrays."""
    _require(isinstance(sizes, dict) and set(sizes) == set(KINDS), f"{place} has other arrays than a forest")
    arrays: dict[str, NDArray[Any]] = {}
    for name, many in sizes.items():
        end = begin[name] + many if _is_whole(many) and many >= 0 else -1
        _require(begin[name] <= end <= len(stored[name]), f"{place} is longer than what is stored")
        arrays[name] = stored[name][begin[name] : end].astype(stored[name].dtype.newbyteorder("="))
        begin[name] = end
    trees, nodes = {len(arrays[name]) for name in PER_TREE}, {len(arrays[name]) for name in PER_NODE}
    _require(len(trees) == 1 and len(nodes) == 1, f"{place} has arrays of unequal length")
    return Forest(**arrays)


def _check_forest(forest: Forest, place: str, levels: tuple[int, ...], outputs: int) -> None:
    """Refuse what would send the scorer outside its arrays or round in circles."""
    nodes, leaves = len(forest.feature), len(forest.value)
    links = np.concatenate([forest.root, forest.left, forest.right]).astype(np.int64)
    # Every node and every leaf hangs from exactly one place, and a node comes after the one it hangs from: no circles.
    places = np.where(links >= 0, links, nodes + ~links)
    _require(bool((links < nodes).all() and (~links < leaves).all()), f"{place} has a link that leads nowhere")
    _require(len(places) == nodes + leaves and len(np.unique(places)) == len(places), f"{place} is not made of trees")
    own = np.arange(nodes)
    for child in (forest.left, forest.right):
        _require(bool(((child < 0) | (child > own)).all()), f"{place} has a tree that runs in circles")
    front = forest.root[forest.root >= 0]
    for _ in range(DEEPEST):
        below = np.concatenate([forest.left[front], forest.right[front]])
        front = below[below >= 0]
    _require(not len(front), f"{place} has a tree deeper than {DEEPEST}")
    kinds = np.array([*(level >= 0 for level in levels), *[False] * outputs], bool)
    known = (forest.feature >= 0) & (forest.feature < len(kinds))
    _require(bool(known.all()), f"{place} tests a feature that is not there")
    categorical = forest.words_at >= 0
    _require(np.array_equal(categorical, kinds[forest.feature]), f"{place} tests a feature as what it is not")
    ends = forest.words_at.astype(np.int64) + forest.words_in
    _require(
        bool(((forest.words_in >= 0) & (~categorical | (ends <= len(forest.words)))).all()),
        f"{place} has a set that ends nowhere",
    )
    _require(bool(((forest.output >= 0) & (forest.output < outputs)).all()), f"{place} adds to an output that is not there")
    _require(bool(np.isfinite(forest.value).all() and not np.isnan(forest.threshold).any()), f"{place} holds no numbers")
    _require(bool((forest.missing_left <= 1).all()), f"{place} has a turn that is neither left nor right")
