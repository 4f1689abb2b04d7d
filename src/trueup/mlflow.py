"""Models in MLflow: save, log and load them with a signature, as a pyfunc that needs neither scikit-learn nor LightGBM.

>>> import trueup as tu
>>> tu.mlflow.__all__
['load_model', 'log_model', 'save_model']
"""

from __future__ import annotations

import contextlib
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup._temporary import temporary_directory
from trueup.data.columns import FLAG_LEVELS
from trueup.errors import ArgumentError, FileError
from trueup.modelfile import load, model_of, save
from trueup.reports.page import report

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from trueup.calibrators.model import Model
    from trueup.data.table import Feature, Schema

__all__ = ["load_model", "log_model", "save_model"]

LOADER, EXTRA = "trueup.mlflow", "mlflow"
FOLDER, MODEL_FILE, PAGE_FILE = "trueup", "model.trueup", "audit.html"  # of the directory "data" of a model


def save_model(model: Any, path: str | os.PathLike[str], *, audit: Any = None, **options: Any) -> None:
    """Save a fitted calibrator or a Model as an MLflow model, in a new directory.

    Parameters
    ----------
    model : Model or fitted calibrator
    path : str or path
        A directory that does not exist, or is empty.
    audit : Audit or sequence of Audit, optional
        Its page is saved with the model, as ``data/trueup/audit.html``; of several audits, the page that compares them.
    **options
        Further parameters of ``mlflow.pyfunc.save_model``, such as ``pip_requirements`` (by default this version of
        trueup), ``input_example`` or ``metadata``.

    See Also
    --------
    log_model : the same in a run.

    Examples
    --------
    >>> import trueup as tu
    >>> loans = tu.simulate.lending(2_000, seed=0)
    >>> fix = tu.Platt("prediction").fit(loans, "outcome")
    >>> tu.mlflow.save_model(fix, "loans")                                     # doctest: +SKIP
    >>> mlflow.pyfunc.load_model("loans").predict(pandas_frame)                # doctest: +SKIP
    """
    fitted, mlflow = model_of(model), _mlflow()
    with temporary_directory() as folder:
        parameters = _pyfunc_options(fitted, audit, Path(folder) / FOLDER, options)
        with _no_example_needed():
            mlflow.pyfunc.save_model(path=str(path), **parameters)


def log_model(model: Any, name: str = "model", *, audit: Any = None, **options: Any) -> Any:
    """Log a fitted calibrator or a Model to MLflow, as a model of the active run if there is one.

    Parameters
    ----------
    model : Model or fitted calibrator
    name : str
        The name of the model in MLflow.
    audit : Audit or sequence of Audit, optional
        Its page is saved with the model, and logged as an artifact of the active run, ``audit.html``.
    **options
        Further parameters of ``mlflow.pyfunc.log_model``, such as ``registered_model_name``.

    Returns
    -------
    mlflow.models.model.ModelInfo
        ``mlflow.pyfunc.load_model(info.model_uri)`` loads the model.

    Notes
    -----
    The model is a pyfunc: its input has the prediction columns (required) and the features (optional: an absent one is
    missing), its output has the columns of corrected scores, such as ``p_trueup``, the same to the bit as
    ``Model.predict``. Where it is loaded, trueup must be installed, but not scikit-learn or LightGBM.
    """
    fitted, mlflow = model_of(model), _mlflow()
    with temporary_directory() as folder:
        data = Path(folder) / FOLDER
        parameters = _pyfunc_options(fitted, audit, data, options)
        with _no_example_needed():
            info = mlflow.pyfunc.log_model(name=name, **parameters)
        if audit is not None and info.run_id is not None:
            mlflow.log_artifact(str(data / PAGE_FILE), run_id=info.run_id)
    return info


def load_model(uri: str) -> Model:
    """Load a Model that `save_model` or `log_model` wrote, with all it has: ``predict_one``, ``explain``, ``info``.

    Parameters
    ----------
    uri : str
        A directory, or a URI of MLflow: "models:/loans/3", "runs:/.../model".
    """
    mlflow = _mlflow()
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=str(uri)))
    path = folder / "data" / FOLDER / MODEL_FILE
    if not path.is_file():
        raise FileError(f"{uri} is not a model of trueup", hint="name a model that tu.mlflow.log_model wrote")
    return load(path)


class PyfuncModel:
    """A Model as MLflow calls it: rows of a pandas frame to a pandas frame of corrected scores, with the same index."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  (of MLflow's interface)
        """Return the corrected scores of rows; features that the rows do not have are missing."""
        pandas = require("pandas", extra=EXTRA)
        frame = data if isinstance(data, pandas.DataFrame) else pandas.DataFrame(data)
        schema = self.model.schema
        absent = [feature.name for feature in schema.features if feature.name not in frame.columns]
        scores = self.model.predict(frame.assign(**dict.fromkeys(absent, np.nan)) if absent else frame)
        return pandas.DataFrame(scores.reshape(len(frame), -1), index=frame.index, columns=list(schema.score_names))


def _load_pyfunc(path: str) -> PyfuncModel:
    """Return the model of a directory; MLflow calls this function by its name."""
    return PyfuncModel(load(Path(path) / MODEL_FILE))


def _mlflow() -> Any:
    """Import MLflow, and what this module uses of it."""
    mlflow = require("mlflow", extra=EXTRA)
    for name in ("artifacts", "models", "pyfunc", "types"):
        require(f"mlflow.{name}", extra=EXTRA)
    return mlflow


@contextlib.contextmanager
def _no_example_needed() -> Iterator[None]:
    """Silence the warning that a signature may be wrong without an input example: it is that of the schema."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input example was not provided.*")
        yield


def _pyfunc_options(model: Model, audit: Any, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Write the files of a model to a new folder; return the parameters of MLflow that save it."""
    own = {"loader_module", "data_path", "python_model", "signature", "artifacts"} & set(options)
    if own:
        listed = ", ".join(sorted(own))
        raise ArgumentError(f"{listed} cannot be set: trueup sets them from the model", hint="leave them out")
    folder.mkdir()
    save(model, folder / MODEL_FILE)
    if audit is not None:
        report(audit, folder / PAGE_FILE)
    return {
        "loader_module": LOADER, "data_path": str(folder), "signature": _signature(model.schema),
        "pip_requirements": [f"trueup=={version('trueup')}"], **options,
    }  # fmt: skip


def _signature(schema: Schema) -> Any:
    """Return the signature: predictions are required, features are optional, the output has the corrected scores."""
    types = require("mlflow.types", extra=EXTRA)
    inputs = [types.ColSpec("double", name) for name in schema.prediction]
    inputs += [
        types.ColSpec(_column_type(feature), feature.name, required=False)
        for feature in schema.features
        if feature.name not in schema.prediction
    ]
    outputs = [types.ColSpec("double", name) for name in schema.score_names]
    return require("mlflow.models").ModelSignature(inputs=types.Schema(inputs), outputs=types.Schema(outputs))


def _column_type(feature: Feature) -> Any:
    """Return the type of a feature in MLflow; categories that read as numbers may be numbers or texts, so any type."""
    if feature.kind != "categorical":
        return {"numeric": "double", "date": "datetime"}[feature.kind]
    if feature.levels and set(feature.levels) <= set(FLAG_LEVELS):
        return "boolean"
    return require("mlflow.types.schema").AnyType() if any(map(_is_number, feature.levels)) else "string"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
