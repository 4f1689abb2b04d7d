"""The summary of a model, as `Model.info` returns it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trueup.calibrators.stopping import EXPECTED, IMPORTED
from trueup.data.values import format_rows

SHOWN_FEATURES = 12  # in the repr of a model


@dataclass(frozen=True)
class Info:
    """A summary of a model, as `Model.info` returns it."""

    method: str
    version: str
    fitted: str
    format: int | None  # of the file it was loaded from
    rows: int  # number of training rows
    task: str
    outcome: str | None
    weight: str | None
    prediction: tuple[str, ...]
    features: tuple[str, ...]
    classes: tuple[str, ...]
    map: str  # in a few words: "1 round (45 trees, 2,310 table cells)"
    size: int | None  # bytes of the file it was loaded from
    measure: str  # "log loss" or "squared error"
    evaluated_on: str  # the rows of the two losses
    loss_before: float
    loss_after: float
    shrunken_gain: float | None  # expected on new rows, allowing for the selection of rounds; None without held-out rows
    evidence: int = 0  # held-out rows, with outcomes and scores, that the model was loaded with

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)

    def __repr__(self) -> str:
        file = "" if self.size is None else f", {self.size:,} bytes (format {self.format})"
        kept = [f"  evidence    {self.evidence:,} held-out rows with outcomes"] if self.evidence else []
        names = [*self.features[:SHOWN_FEATURES], *(["..."] if len(self.features) > SHOWN_FEATURES else [])]
        origin = f"{self.method} of trueup {self.version}, fitted {self.fitted} on {format_rows(self.rows)}"
        if self.evaluated_on == IMPORTED:
            origin = f"{self.method} model without training rows, imported by trueup {self.version} on {self.fitted}"
        unevaluated = {
            EXPECTED: "  fitted without outcomes: not evaluated",
            IMPORTED: "  imported: not evaluated",
        }
        return "\n".join(
            [
                f"{origin}{file}",
                f"  task        {self.task}",
                f"  prediction  {', '.join(self.prediction) or 'none'}",
                f"  features    {', '.join(names) or 'none'}",
                f"  map         {self.map}",
                unevaluated.get(self.evaluated_on)
                or f"  {self.evaluated_on}: {self.measure} {self.loss_before:.6g} -> {self.loss_after:.6g}",
                *kept,
            ]
        )
