"""The linear round: scores F become slope * F + intercept, with an intercept per output, if a test finds it needed.

A slope and an intercept need few rows: they correct what Platt scaling corrects before trees see the scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import special

from trueup.calibrators.mcgrad.cascade import FACTOR_BOUNDS
from trueup.cluster.communicator import SINGLE_PROCESS, Communicator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.stopping import Split, TaskLoss

LINE_L2 = 1.0  # of the distance to slope 1 and intercept 0, for probabilities: outcomes may all be 0 or 1
MAX_STEPS = 50
TOLERANCE = 1e-10  # of a step, in parameters
ROUNDING = 1e-13  # of a loss, relative to it: close to the minimum it need not fall


class Line(NamedTuple):
    """Scores ``slope * F + intercept``; the intercept of the last of several outputs is 0."""

    slope: float
    intercept: FloatArray  # per output


class _Sums(NamedTuple):
    """Sums over rows: the loss, its gradient and its Hessian in (slope, intercepts)."""

    loss: float
    gradient: FloatArray
    hessian: FloatArray


def fit_lines(
    loss: TaskLoss, y: FloatArray, F: FloatArray, weight: FloatArray | None, splits: Sequence[Split],
    communicator: Communicator = SINGLE_PROCESS,
) -> list[Line]:  # fmt: skip
    """Return the line of lowest loss on the training rows of each split."""
    w = np.ones(len(y)) if weight is None else weight
    everywhere = _minimise(loss, y, F, w, _identity(F.shape[1]), communicator)
    lines = []
    for split in splits:
        train = split.train
        own = _minimise(loss, y[train], F[train], w[train], everywhere, communicator)
        intercept = np.zeros(F.shape[1])
        intercept[: len(own) - 1] = own[1:]
        lines.append(Line(float(own[0]), intercept))
    return lines


def line_loss(
    loss: TaskLoss, y: FloatArray, F: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS
) -> float:
    """Return the total loss of the best line over all rows."""
    w = np.ones(len(y)) if weight is None else weight
    line = _minimise(loss, y, F, w, _identity(F.shape[1]), communicator)
    return _sum_rows(loss, y, F, w, line, communicator).loss


def line_p_value(
    loss: TaskLoss, y: FloatArray, F: FloatArray, weight: FloatArray | None, cluster: IntArray | None = None,
    communicator: Communicator = SINGLE_PROCESS, cluster_count: int = 0,
) -> float:  # fmt: skip
    """Test that no line lowers the expected loss: a score test with the observed squares of the scores.

    Sums over clusters take the place of rows, if any. Probabilities of independent rows must also be rejected with the
    variance that they imply, which is known where events are few. The statistic has an F distribution, with as many
    denominators as rows (or clusters) contribute effectively. Of several outputs the slope is also tested alone, since
    rows may be too few for as many intercepts; the smaller p-value is doubled.
    """
    tested = [slice(None)] if F.shape[1] == 1 else [slice(None), slice(1)]
    p_values = [_test_columns(loss, y, F, weight, own, cluster, communicator, cluster_count) for own in tested]
    return min(1.0, len(p_values) * min(p_values))


def _test_columns(
    loss: TaskLoss, y: FloatArray, F: FloatArray, weight: FloatArray | None, tested: slice, cluster: IntArray | None,
    communicator: Communicator, cluster_count: int,
) -> float:  # fmt: skip
    """Return the p-value of the score test of some of the parameters (slope, intercepts), those in ``tested``."""
    w = np.ones(len(y)) if weight is None else weight
    line = _identity(F.shape[1])
    scores = w[:, None] * _row_scores(loss, y, F, line)[:, tested]
    if loss.name == "squared":  # scores far from 0 are nearly constant: the slope is tested around their mean
        mean = _weighted_sums(communicator, w, w * F[:, 0])
        scores[:, 0] -= mean[1] / mean[0] * scores[:, 1]
    workers = communicator
    if cluster is not None:
        by_cluster = [np.bincount(cluster, column, cluster_count) for column in scores.T]
        scores = np.asarray(communicator.all_reduce_sum(by_cluster)).T
        workers = SINGLE_PROCESS  # every worker has the sums of all clusters now
    unit = np.asarray(workers.all_reduce_max(np.abs(scores).max(axis=0, initial=0.0)))
    used = unit > 0  # a slope changes nothing if all scores are 0
    if not used.any() or not np.isfinite(unit).all():
        return 1.0
    scores, unit = scores[:, used] / unit[used], unit[used]
    columns = len(unit)
    parts = [scores.sum(axis=0), (scores.T @ scores).ravel(), (scores**4).sum(axis=0)]
    sums = np.asarray(workers.all_reduce_sum(np.concatenate(parts)))
    total, squares, fourth = sums[:columns], sums[columns:-columns].reshape(columns, columns), sums[-columns:]
    rows = float((np.diag(squares) ** 2 / fourth).min())
    if rows <= columns + 1:
        return 1.0
    form = _quadratic_form(total, squares)
    if cluster is not None or loss.name == "squared":
        return float(special.fdtrc(columns, rows - columns, form * (rows - columns) / (rows * columns)))
    share = min(form / rows, 1 - 1e-12)  # Hotelling's statistic, from squares around 0
    robust = float(special.fdtrc(columns, rows - columns, share / (1 - share) * (rows - columns) / columns))
    hessian = _sum_rows(loss, y, F, w**2, line, communicator).hessian[tested, tested]
    implied = hessian[np.ix_(used, used)] / np.outer(unit, unit)
    return max(robust, float(special.chdtrc(columns, _quadratic_form(total, implied))))


def _identity(outputs: int) -> FloatArray:
    """Return slope 1 and intercepts 0; the last of several outputs has no intercept."""
    line = np.zeros(1 + max(outputs - 1, 1))
    line[0] = 1.0
    return line


def _quadratic_form(total: FloatArray, variance: FloatArray) -> float:
    """Return total' variance^-1 total; directions without variance do not count."""
    return float(total @ np.linalg.pinv(variance, rcond=1e-10, hermitian=True) @ total)


def _minimise(
    loss: TaskLoss, y: FloatArray, F: FloatArray, w: FloatArray, start: FloatArray, communicator: Communicator
) -> FloatArray:
    """Return slope and intercepts of lowest penalised loss by Newton's method; steps that increase it are shortened."""
    if loss.name == "squared":
        return _least_squares(y, F[:, 0], w, communicator)
    identity = _identity(F.shape[1])

    def penalised(line: FloatArray) -> _Sums:
        sums, distance = _sum_rows(loss, y, F, w, line, communicator), line - identity
        penalty = 0.5 * LINE_L2 * float(distance @ distance)
        return _Sums(sums.loss + penalty, sums.gradient + LINE_L2 * distance, sums.hessian + LINE_L2 * np.eye(len(line)))

    line, sums = start.copy(), penalised(start)
    for _ in range(MAX_STEPS):
        step = np.linalg.pinv(sums.hessian, rcond=1e-12, hermitian=True) @ sums.gradient
        for _ in range(30):
            moved = line - step
            moved[0] = min(max(moved[0], FACTOR_BOUNDS[0]), FACTOR_BOUNDS[1])
            after = penalised(moved)
            if after.loss <= sums.loss + ROUNDING * abs(sums.loss):
                break
            step = step / 4
        else:
            return line
        done = np.abs(moved - line).max() < TOLERANCE * (1 + np.abs(line).max())
        line, sums = moved, after
        if done:
            break
    return line


def _least_squares(y: FloatArray, f: FloatArray, w: FloatArray, communicator: Communicator) -> FloatArray:
    """Return slope and intercept of lowest squared error, from sums around the means: numbers may be large."""
    mass, f_sum, y_sum = _weighted_sums(communicator, w, w * f, w * y)
    if mass <= 0:
        return _identity(1)
    f_mean, y_mean = f_sum / mass, y_sum / mass
    square, product = _weighted_sums(communicator, w * (f - f_mean) ** 2, w * (f - f_mean) * (y - y_mean))
    slope = min(max(product / square, FACTOR_BOUNDS[0]), FACTOR_BOUNDS[1]) if square > 0 else 1.0
    return np.array([slope, y_mean - slope * f_mean])


def _weighted_sums(communicator: Communicator, *columns: FloatArray) -> list[float]:
    """Return the sums of some columns over the rows of all workers."""
    return [float(total) for total in communicator.all_reduce_sum([column.sum() for column in columns])]


def _residuals(loss: TaskLoss, y: FloatArray, G: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return predicted minus observed outcomes, (n, outputs), of the scores ``G``, and the predictions."""
    if loss.name == "squared":
        return G - y[:, None], np.ones_like(G)
    if loss.name == "log":
        p = special.expit(G)
        return p - y[:, None], p
    p = special.softmax(G, axis=1)
    residual = p.copy()
    residual[np.arange(len(y)), y.astype(np.int64)] -= 1
    return residual, p


def _row_scores(loss: TaskLoss, y: FloatArray, F: FloatArray, line: FloatArray) -> FloatArray:
    """Return the gradient of the loss of every row in (slope, intercepts)."""
    residual, _ = _residuals(loss, y, _on_line(F, line))
    return np.column_stack([(F * residual).sum(axis=1), residual[:, : len(line) - 1]])


def _on_line(F: FloatArray, line: FloatArray) -> FloatArray:
    G = line[0] * F
    G[:, : len(line) - 1] += line[1:]
    return np.asarray(G)


def _sum_rows(
    loss: TaskLoss, y: FloatArray, F: FloatArray, w: FloatArray, line: FloatArray, communicator: Communicator
) -> _Sums:
    """Return the sums over the rows of all workers, with weights ``w``, at the line."""
    G = _on_line(F, line)
    residual, p = _residuals(loss, y, G)
    count = len(line) - 1
    if F.shape[1] == 1:
        h = w if loss.name == "squared" else w * (p * (1 - p))[:, 0]
        f = F[:, 0]
        second = [(h * f * f).sum(), (h * f).sum(), h.sum()]
        hessian = np.array([[second[0], second[1]], [second[1], second[2]]])
    else:
        mean = (p * F).sum(axis=1, keepdims=True)
        slope = float((w * ((p * F * F).sum(axis=1) - mean[:, 0] ** 2)).sum())
        q = p[:, :count]
        cross = (w[:, None] * q * (F[:, :count] - mean)).sum(axis=0)
        block = np.diag((w[:, None] * q).sum(axis=0)) - (w[:, None] * q).T @ q
        hessian = np.block([[np.array([[slope]]), cross[None, :]], [cross[:, None], block]])
    scores = np.column_stack([(F * residual).sum(axis=1), residual[:, :count]])
    parts = [[float((w * loss.per_row(y, G)).sum())], w @ scores, hessian.ravel()]
    sums = np.asarray(communicator.all_reduce_sum(np.concatenate(parts)))
    half = 2.0 if loss.name == "squared" else 1.0  # the squared error is twice the loss of these derivatives
    return _Sums(float(sums[0]) / half, sums[1 : 2 + count], sums[2 + count :].reshape(count + 1, count + 1))
