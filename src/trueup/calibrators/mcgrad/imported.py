"""Models of the package mcgrad: its JSON becomes a Model with a Cascade, without mcgrad and without LightGBM.

The file has no name of the prediction column, no losses and no training rows. What it has is validated as untrusted input.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from trueup import storage
from trueup.calibrators.explain import Explanation
from trueup.calibrators.floors import MIN_FLOOR, OLD_FLOORS, Floors
from trueup.calibrators.history import History
from trueup.calibrators.mcgrad.cascade import CONTENT_ERRORS, STORED_BOUNDS, Cascade, CascadeRound, check_forest
from trueup.calibrators.mcgrad.lightgbm_text import WORD_BITS, BoosterText, parse_booster
from trueup.calibrators.model import FileContentError, FitRecord, Model, date_of_fit, is_integer, read_texts, require
from trueup.calibrators.stopping import IMPORTED, Evaluation, task_loss
from trueup.data.columns import FLAG_LEVELS, format_number
from trueup.data.table import Feature, Schema
from trueup.errors import ArgumentError, FileError, ImportedModelWarning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import IO

    from trueup._types import AnyArray, UInt32Array
    from trueup.data.table import Task

SCHEMA_VERSIONS = (None, 1, 2)  # of mcgrad's files; the first had none
TASKS: dict[str, Task] = {"binary": "binary", "regression": "regression"}  # by the objective of the trees
FLOORS: Floors = (MIN_FLOOR, MIN_FLOOR)  # mcgrad adds 1e-304 to p and to 1 - p before their logarithms
MAX_BYTES = 1 << 27
UNSEEN = "(unseen)"
MEMBER = re.compile(
    r"""\s*(?P<key>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\w.+-]+)\s*:\s*(?P<code>\d{1,10})\s*(?P<end>[,}])""", re.DOTALL
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.ASCII)
HINT = "write it with model.serialize() of mcgrad 0.1.5"
MCGRAD_DIFFERS = (
    "mcgrad predicts NaN for rows with a missing feature by this model (allow_missing_segment_feature_values=False), and "
    "the import predicts a score\nhint: leave such rows out, if they must not have one"
)


def load_mcgrad(source: str | bytes | os.PathLike[str] | IO[Any], prediction: str = "prediction") -> Model:
    """Load a model that the package mcgrad saved, as a Model: it predicts, explains and is saved like any other.

    Neither mcgrad nor LightGBM is needed. Scores equal those of mcgrad 0.1.5 up to rounding, also for missing and unseen
    values, and for scores of exactly 0 and 1.

    Parameters
    ----------
    source : str, bytes, path or file object
        What ``model.serialize()`` of a fitted ``MCGrad`` or ``RegressionMCGrad`` returned, as text, or a file of it.
    prediction : str
        The column of the scores to be corrected, which the file does not name.

    Returns
    -------
    Model
        Its columns are the prediction and the features of mcgrad, categorical ones first. It has no losses and no
        corrected segments, since the file has no rows; ``explain(row)`` works.

    Raises
    ------
    FileError
        If the file is damaged, or of a model that trueup does not have: trees with linear functions in their leaves or
        zeros as missing values, factors of a round that are not between 1e-9 and 50, categories of other types than
        texts, numbers and booleans, or columns without names.

    Examples
    --------
    >>> import trueup as tu
    >>> text = '''{"schema_version": 2, "mcgrad": [], "params": {"lightgbm_params": {"objective": "binary"}},
    ...     "has_encoder": true, "encoder": "{0: {'east': 0, 'west': 1}}",
    ...     "categorical_feature_names": ["region"], "numerical_feature_names": ["age"]}'''
    >>> tu.load_mcgrad(text, prediction="p")
    mcgrad model without training rows, imported by trueup ...
      task        binary
      prediction  p
      features    region, age
      map         0 rounds (0 trees, 0 table cells)
      imported: not evaluated
    """
    if not isinstance(prediction, str):
        raise ArgumentError(f"prediction must be the name of a column; got {prediction!r}", parameter="prediction")
    text, name = _read_text(source)
    try:
        return _parse_model(text, prediction)
    except FileContentError as error:
        raise FileError(f"cannot import {name}: {error}", hint=HINT) from None
    except CONTENT_ERRORS as error:
        raise FileError(f"{name} is not a model that mcgrad saved ({type(error).__name__})", hint=HINT) from None


def _read_text(source: Any) -> tuple[str, str]:
    """Return the text of a file, and its name for messages."""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return source, "the text"
    name = storage.describe_source(source)
    if isinstance(source, (str, os.PathLike)):
        try:
            with Path(source).open("rb") as stream:
                content: Any = stream.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {name}: {error}", hint="pass the path of a file, or its text") from error
    else:
        content = source.read(MAX_BYTES + 1) if hasattr(source, "read") else source
        content = content if isinstance(content, str) else storage.read_bytes(content, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileError(f"{name} is larger than {MAX_BYTES:,} bytes", hint="is it the right file?")
    try:
        return content if isinstance(content, str) else content.decode("utf-8"), name
    except UnicodeDecodeError:
        raise FileError(f"{name} is not a model that mcgrad saved: it is no text", hint=HINT) from None


def _reject_constant(text: str) -> NoReturn:
    raise FileContentError(f"it contains the number {text}")


def _parse_model(text: str, prediction: str) -> Model:
    """Return the model of a text; raise FileContentError, or one of CONTENT_ERRORS, if it is invalid."""
    content = json.loads(text, parse_constant=_reject_constant)
    found = content.get("schema_version")
    known = found is None or (is_integer(found) and found in SCHEMA_VERSIONS)
    require(known, f"it has the schema version {found!r}; mcgrad 0.1.5 writes version 2")
    names = [content.get(f"{kind}_feature_names") for kind in ("categorical", "numerical")]
    require(None not in names, "it does not name its columns, as files of the first versions of mcgrad")
    categorical, numeric = (read_texts(own, "column names") for own in names)
    require(len({*categorical, *numeric}) == len(categorical) + len(numeric), "a column name appears twice")
    require(prediction not in categorical, f"{prediction!r} is a category and cannot be the prediction")
    boosters, factors = [], []
    for number, entry in enumerate(content["mcgrad"], start=1):
        place, factor = f"round {number}", entry["unshrink_factor"]
        require(isinstance(entry["booster"], str), f"{place} has no trees")
        boosters.append(parse_booster(entry["booster"], len(categorical) + len(numeric) + 1, place))
        low, high = STORED_BOUNDS
        valid = isinstance(factor, (int, float)) and not isinstance(factor, bool) and low <= factor <= high
        require(valid, f"the unshrink factor of {place} is not between {low:g} and {high:g}: {str(factor)[:20]}")
        factors.append(float(factor))
    parameters = content.get("params", {})
    require(isinstance(parameters, dict), "its parameters are invalid")
    task = _find_task(boosters, parameters)
    encoded = parameters.get("encode_categorical_variables", content["has_encoder"])
    require(isinstance(encoded, bool), "its encoder is invalid")
    used = _used_codes(boosters, len(categorical))
    if encoded and categorical:
        require(isinstance(content.get("encoder"), str), "it has no encoder of its categories")
        columns = _parse_encoder(content["encoder"], len(categorical))
        vocabularies = [ImportedCategories.of_encoder(*column) for column in zip(categorical, columns, used, strict=True)]
    else:
        vocabularies = [ImportedCategories.of_codes(name, codes) for name, codes in zip(categorical, used, strict=True)]
    if parameters.get("allow_missing_segment_feature_values") is False:
        warnings.warn(MCGRAD_DIFFERS, ImportedModelWarning, stacklevel=4)
    features = (*(own.feature for own in vocabularies), *(Feature(name, "numeric") for name in numeric))
    schema = Schema(task, None, (prediction,), None, features)
    return _build(schema, _build_rounds(boosters, factors, vocabularies, schema), parameters)


def _find_task(boosters: Sequence[BoosterText], parameters: dict[str, Any]) -> Task:
    """Return the task of the objective that all trees have, or that the parameters name if there are no trees."""
    objectives = {booster.objective for booster in boosters}
    if not boosters:
        stated = parameters.get("lightgbm_params")
        objectives = {str(stated.get("objective"))} if isinstance(stated, dict) else set()
    known = len(objectives) == 1 and objectives <= set(TASKS)
    require(known, "its trees have neither the objective binary, of MCGrad, nor regression, of RegressionMCGrad")
    return TASKS[objectives.pop()]


def _build_rounds(
    boosters: Sequence[BoosterText], factors: Sequence[float], vocabularies: Sequence[ImportedCategories], schema: Schema
) -> tuple[CascadeRound, ...]:
    """Return the rounds of a Cascade, validated as those of a file."""
    floors = OLD_FLOORS if schema.task == "regression" else FLOORS

    def recode(feature: int, words: UInt32Array) -> UInt32Array:
        # A node that tests a number as a category is invalid, and `check_forest` rejects it.
        return vocabularies[feature].recode(words) if feature < len(vocabularies) else words

    rounds = []
    for number, (booster, factor) in enumerate(zip(boosters, factors, strict=True), start=1):
        require(len(booster.trees) > 0, f"round {number} has no trees")
        forest = booster.to_forest(recode)
        check_forest(forest, f"round {number}", schema.levels, outputs=1)
        rounds.append(CascadeRound((factor,), (forest,), len(booster.trees), floors=floors if number == 1 else OLD_FLOORS))
    return tuple(rounds)


def _build(schema: Schema, rounds: tuple[CascadeRound, ...], parameters: dict[str, Any]) -> Model:
    loss, count = task_loss(schema.task), len(rounds)
    trees, thetas = [step.trees for step in rounds], [step.thetas[0] for step in rounds]
    reason = f"{count} round{'' if count == 1 else 's'}, as mcgrad kept them; its file states no losses"
    history = History.of([Evaluation(0.0)] * (count + 1), count, reason, IMPORTED, loss.measure, trees, thetas)
    unit = "change" if schema.task == "regression" else "points"
    about = FitRecord("mcgrad", {"mcgrad": parameters}, 0, date_of_fit(), version("trueup"))
    fitted = Cascade(loss.link, schema.levels, 1, rounds)
    return Model(schema, fitted, history, Explanation((), 0, 0.0, 0.0, unit=unit), about)


def _used_codes(boosters: Iterable[BoosterText], categorical: int) -> list[AnyArray]:
    """Return, for each categorical column, the ascending codes that are in at least one set of a node."""
    joined: list[UInt32Array] = [np.zeros(0, np.uint32)] * categorical
    for booster in boosters:
        for tree in booster.trees:
            for node, words in tree.node_sets():
                column = int(tree.feature[node])
                require(column < categorical, f"a tree tests column {column}, a number, as a category")
                short, long = sorted((joined[column], words), key=len)
                joined[column] = long.copy()
                joined[column][: len(short)] |= short
    return [_codes_of(words) for words in joined]


def _codes_of(words: UInt32Array) -> AnyArray:
    """Return the codes whose bits are set in a set of categories."""
    return np.flatnonzero(np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little"))


@dataclass(frozen=True, eq=False)
class ImportedCategories:
    """A categorical column of mcgrad as a feature, and the bit of each of mcgrad's codes in the sets of a `Forest`."""

    feature: Feature
    bits: AnyArray  # at a code of mcgrad: 1 + the code of the level, 0 for missing values, -1 for none

    @classmethod
    def of_encoder(cls, name: str, codes: dict[str | None, int], used: AnyArray) -> ImportedCategories:
        """Return the vocabulary of a column whose texts have ``codes``, None those of missing values.

        mcgrad sends unseen categories to the right, and so missing ones, unless training had some and a node sends them
        left: unseen ones have a level of their own then.
        """
        levels = [text for text in codes if text is not None]
        bits = np.full(max(codes.values(), default=-1) + 1, -1)
        bits[[codes[text] for text in levels]] = np.arange(1, len(levels) + 1)
        if None not in codes:
            return cls(Feature(name, "categorical", tuple(levels)), bits)
        bits[codes[None]] = 0
        if codes[None] not in used:
            return cls(Feature(name, "categorical", tuple(levels)), bits)
        label = UNSEEN
        while label in codes:
            label = f"({label})"
        return cls(Feature(name, "categorical", (*levels, label), unseen_level=True), bits)

    @classmethod
    def of_codes(cls, name: str, used: AnyArray) -> ImportedCategories:
        """Return the vocabulary of a column of integer codes: the ``used`` ones, since trees treat all others alike."""
        bits = np.full(int(used.max(initial=-1)) + 1, -1)
        bits[used] = np.arange(1, len(used) + 1)
        return cls(Feature(name, "categorical", tuple(map(str, used.tolist()))), bits)

    def recode(self, words: UInt32Array) -> UInt32Array:
        """Return a set of mcgrad's codes as a set of the codes of the feature."""
        codes = _codes_of(words)
        bits = self.bits[codes[codes < len(self.bits)]]
        flags = np.zeros(-(-(int(bits.max(initial=0)) + 1) // WORD_BITS) * WORD_BITS, bool)
        flags[bits[bits >= 0]] = True
        return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)


def _parse_encoder(text: str, columns: int) -> list[dict[str | None, int]]:
    """Return the codes of the categories of each column, as texts; None stands for missing values.

    The text is a Python dict of dicts, column -> category -> code. It is read by its tokens, and nothing is evaluated
    except a single text.
    """
    parsed: list[dict[str | None, int]] = []
    rest = re.match(r"\s*\{", text)
    require(rest is not None, "its encoder is invalid")
    place = 1 if rest is None else rest.end()
    for column in range(columns):
        opening = re.compile(rf"\s*{column}\s*:\s*\{{").match(text, place)
        require(opening is not None, f"its encoder has no categories of column {column}")
        assert opening is not None
        codes, place = _parse_codes(text, opening.end(), f"column {column}")
        closing = re.compile(r"\s*,?").match(text, place)
        place = place if closing is None else closing.end()
        parsed.append(codes)
    require(text[place:].strip() == "}", "its encoder has other columns than the model")
    return parsed


def _parse_codes(text: str, place: int, column: str) -> tuple[dict[str | None, int], int]:
    """Return the codes of the categories of one column, and where its text ends."""
    codes: dict[str | None, int] = {}
    kinds: set[str] = set()
    member = None
    while member is None or member["end"] != "}":
        member = MEMBER.match(text, place)
        require(member is not None, f"the encoder of {column} has a category that is no text, number or boolean")
        assert member is not None
        category, kind = _parse_category(member["key"], column)
        require(category not in codes, f"the encoder of {column} has two categories that read {category!r}")
        codes[category], place = int(member["code"]), member.end()
        kinds.add(kind)
    require(not {"flag", "number"} <= kinds, f"the encoder of {column} mixes booleans with numbers")
    numbers = sorted(codes.values())
    require(numbers == list(range(len(codes))), f"the codes of {column} are invalid")
    return codes, place


def _parse_category(text: str, column: str) -> tuple[str | None, str]:
    """Return the text of a category as a Table has it, None for a missing value; and its kind."""
    if text[0] in "'\"":
        try:
            return str(ast.literal_eval(text)), "text"
        except SyntaxError:
            raise FileContentError(f"the encoder of {column} has an invalid text") from None
    if text in ("None", "nan"):
        return None, "missing"
    if text in ("True", "False"):
        return FLAG_LEVELS[text == "True"], "flag"
    valid = NUMBER.fullmatch(text) is not None
    require(valid, f"the encoder of {column} has a category that is no text, number or boolean")
    value = float(text)
    require(math.isfinite(value), f"the encoder of {column} has an infinite category")
    is_integer_text = "." not in text and "e" not in text
    return text if is_integer_text and abs(value) >= 2**53 else format_number(value), "number"
