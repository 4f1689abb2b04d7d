"""The losses of the three tasks on the scale of the link: per-row values and the best factor of the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.kernels.cascade import MIN_PROBABILITY

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.cluster.communicator import Communicator
    from trueup.data.schema import Task
    from trueup.learners.lightgbm import Loss


THETA_BOUNDS = (0.5, 2.0)  # of the factor of a round


@dataclass(frozen=True)
class TaskLoss:
    """The loss of a task; F is (rows, outputs) on the scale of the link."""

    name: Loss
    link: str

    @property
    def measure(self) -> str:
        """Return the name of the loss in reports."""
        return "squared error" if self.name == "squared" else "log loss"

    def apply_link(self, prediction: FloatArray) -> FloatArray:
        """Transform predictions to the scale of the link, as the scorer does."""
        return apply_link(prediction, self.link)

    def per_row(self, y: FloatArray, F: FloatArray) -> FloatArray:
        """Return the loss of every row."""
        if self.name == "squared":
            return np.asarray((y - F[:, 0]) ** 2)
        if self.name == "log":
            return np.asarray(np.logaddexp(0.0, F[:, 0]) - y * F[:, 0])
        top = F.max(axis=1)
        return np.asarray(top + np.log(np.exp(F - top[:, None]).sum(axis=1)) - F[np.arange(len(F)), y.astype(np.int64)])

    def theta(
        self, y: FloatArray, F: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS
    ) -> float:
        """Return the factor of F that minimises the loss over the rows of all workers, by Newton's method in a bracket."""
        w = np.ones(len(y)) if weight is None else weight
        low, high = THETA_BOUNDS
        theta = 1.0
        for _ in range(100):
            slope, curvature = map(float, communicator.all_reduce_sum(self._derivatives(y, F, w, theta)))
            if slope == 0:
                return theta
            low, high = (low, theta) if slope > 0 else (theta, high)
            step = min(max(theta - slope / curvature, THETA_BOUNDS[0]), THETA_BOUNDS[1]) if curvature > 0 else low - 1
            if not low <= step <= high:
                step = (low + high) / 2
            if abs(step - theta) < 1e-12:
                return step
            theta = step
        return theta

    def _derivatives(self, y: FloatArray, F: FloatArray, w: FloatArray, theta: float) -> tuple[float, float]:
        """Return the first and second derivative of the loss in theta."""
        if self.name == "squared":
            f = F[:, 0]
            return float(2 * (w * f * (theta * f - y)).sum()), float(2 * (w * f * f).sum())
        if self.name == "log":
            f = F[:, 0]
            p = 1 / (1 + np.exp(-np.clip(theta * f, -700, 700)))
            return float((w * f * (p - y)).sum()), float((w * f * f * p * (1 - p)).sum())
        G = theta * F
        p = np.exp(G - G.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = (p * F).sum(axis=1)
        hit = F[np.arange(len(F)), y.astype(np.int64)]
        return float((w * (mean - hit)).sum()), float((w * ((p * F * F).sum(axis=1) - mean**2)).sum())


def apply_link(prediction: FloatArray, link: str) -> FloatArray:
    """Transform predictions, (n,) or (n, outputs), to the scale of a link, (n, outputs), as the scorer does."""
    p = prediction[:, None] if prediction.ndim == 1 else prediction
    if link == "identity":
        return p.astype(np.float64)
    if link == "softmax":
        return np.log(np.maximum(p, MIN_PROBABILITY))
    p = np.clip(p, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(np.log(p) - np.log1p(-p))


def task_loss(task: Task) -> TaskLoss:
    """Return the loss and the link of a task."""
    return {
        "binary": TaskLoss("log", "logit"),
        "regression": TaskLoss("squared", "identity"),
        "multiclass": TaskLoss("classes", "softmax"),
    }[task]
