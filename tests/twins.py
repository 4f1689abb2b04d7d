"""NumPy twins: the definitions of the kernels, slow and written from the formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.special import ndtr


def path(y, p, w=None):
    """Unnormalised cumulative differences at 0 and after each distinct score."""
    y, p = np.asarray(y, float), np.asarray(p, float)
    w = np.ones(len(y)) if w is None else np.asarray(w, float)
    steps = [np.sum((w * (y - p))[p <= score]) for score in np.unique(p)]
    return np.array([0.0, *steps])


def span(y, p, w=None):
    c = path(y, p, w)
    return c.max() - c.min()


def rise(y, p, w=None):
    c = path(y, p, w)
    return max(c[j] - c[i] for i, j in itertools.combinations_with_replacement(range(len(c)), 2))


def moments(p, w=None):
    w = np.ones(len(p)) if w is None else np.asarray(w, float)
    v = np.sum(w**2 * p * (1 - p))
    return v, np.sum(w**3 * p * (1 - p) * (1 - 2 * p))


def range_tail(x):
    if x < 0.25:
        return 1.0
    return min(1.0, 8 * math.fsum((-1) ** (k - 1) * k * ndtr(-k * x) for k in range(1, 200)))


def default_pvalue(y, p, w=None):
    """Return the segment p-value, term by term as defined."""
    c = path(y, p, w)
    s = 1 if np.argmin(c) < np.argmax(c) else -1
    return tail_of_sums(span(y, p, w), s, *moments(np.asarray(p, float), w))


def weighted_floor(y, p, w=None, design=1.0):
    """Lowest p-value of a segment of unequal weights: the limit with its observed squares, if these exceed the variance."""
    if w is None or np.ptp(w) == 0:
        return 0.0
    v, _ = moments(np.asarray(p, float), w)
    c = path(y, p, w)
    h = max(1.0, np.sum(w * y) / np.sum(w * p)) if np.argmin(c) < np.argmax(c) else 1.0
    squares = np.sum(w**2 * (y - p) ** 2) / h
    return range_tail(span(y, p, w) / math.sqrt(squares * design)) if squares > v else 0.0


def observed_cumulants(y, p, w, everything):
    """Variance and third cumulant from the residuals of a segment, where weights depend on the outcome in an unknown way.

    ``everything`` has the residuals w (y - p) of all rows.
    """
    u, c, x = w * (y - p), path(y, p, w), span(y, p, w)
    square = np.sum(u**2)
    up, down = (max(np.sum(np.maximum(sign * own, 0) ** 3) / np.sum(own**2) for own in (u, everything)) for sign in (1, -1))
    if np.argmin(c) > np.argmax(c):
        return square + up * x, -down * (square + up * x)
    v = max(square / max(1.0, np.sum(w * y) / np.sum(w * p)), square - up * x) + down * x
    return v, up * v


def weight_model(y, p, w):
    """Return the slope of ln w on y within score bins, 0 unless clear, then three z values and a drift of the residuals.

    The z values are of the covariances of y with powers 1 to 3 of the residuals; the drift is that of the first over the
    bins.
    """
    x = np.log(p / (1 - p))
    bins = [b for b in (np.floor((x + 10) / 0.25) == number for number in range(81)) if b.any()]

    def residuals(values):
        out = np.empty(len(values))
        for b in bins:
            design = np.column_stack([np.ones(b.sum()), x[b]])
            out[b] = values[b] - design @ np.linalg.lstsq(design, values[b], rcond=None)[0]
        return out

    def standard_error(values, least):
        return math.sqrt(sum(np.sum(d[b] ** 2) * max(np.var(values[b]), least) for b in bins))

    d, logs = residuals(y), np.log(w)
    slope = np.sum(d * logs) / np.sum(d**2)
    z = slope * np.sum(d**2) / standard_error(residuals(logs - slope * y), 1e-4)
    is_clear = abs(slope) > math.log(1.1) and abs(z) > 5
    r = residuals(logs - slope * y if is_clear else logs)
    others = [np.sum(d * r**k) / standard_error(r**k, 1e-4**k) for k in (1, 2, 3)]
    centred = d * r - d**2 * np.sum(d * r) / np.sum(d**2)
    drift = np.abs(np.cumsum([centred[b].sum() for b in bins])).max() / standard_error(r, 1e-4)
    return slope if is_clear else 0.0, others, drift


def real_noise(y, p, w=None):
    """Standard deviation of the sum of residuals by successive differences, averaged over all orders within ties."""
    y, p = np.asarray(y, float), np.asarray(p, float)
    u = (y - p) * (1.0 if w is None else np.asarray(w, float))
    groups = [u[p == score] for score in np.unique(p)]
    ss = [np.sum((g - g.mean()) ** 2) for g in groups]
    var = [s / len(g) for s, g in zip(ss, groups, strict=True)]
    mean = [g.mean() for g in groups]
    between = sum(var[j] + var[j + 1] + (mean[j] - mean[j + 1]) ** 2 for j in range(len(groups) - 1))
    n = len(u)
    return math.sqrt(n / (n - 1) * (sum(ss) + between / 2))


def _variance_at(score, c, v):
    """Return the variance at a score: linear through the points (c, v), beyond the outer ones with floors."""
    if len(c) > 1 and score < c[0]:
        return max(v[0] + (score - c[0]) * (v[1] - v[0]) / (c[1] - c[0]), v[0] / 4)
    if len(c) > 1 and score > c[-1]:
        return max(v[-1] + (score - c[-1]) * (v[-1] - v[-2]) / (c[-1] - c[-2]), v[-1] / 2)
    return np.interp(score, c, v)


def zero_odds(y, codes, share):
    """Return (n - k) / (k + 1) of every row, the largest of its levels and pairs of levels with unexplained zeros, else 0.

    k of n outcomes are not zero; ``share`` is the probability of that at the score of each row. All rows, single columns and
    pairs of columns have equal shares of 5%.
    """
    out = np.zeros(len(y))
    combinations = [*itertools.combinations(codes, 1), *itertools.combinations(codes, 2)]
    for columns in combinations:
        cells = set(zip(*(column.tolist() for column in columns), strict=True))
        for cell in cells:
            inside = np.all([column == code for column, code in zip(columns, cell, strict=True)], axis=0)
            k, expected = np.sum(y[inside] != 0), share[inside].sum()
            chance = sum(math.exp(-expected + j * math.log(expected) - math.lgamma(j + 1)) for j in range(k + 1))
            if 3 * k < expected and chance * len(cells) * (1 + len(combinations)) <= 0.05:
                out[inside] = np.maximum(out[inside], (inside.sum() - k) / (k + 1))
    return out


def pooled_noise(y, p, w, codes, min_rows):
    """Return variance and third cumulant of w (y - p) of every row, and the slope: the definition, row by row.

    ``codes`` has the level of every row for each column. Rows are equal-count score bins, merged until each has 10 non-zero
    outcomes; the variance is linear between the bins; levels that vary more have a factor, and levels and pairs of levels
    with unexplained zeros at least the variance that these imply.
    """
    order = np.argsort(p, kind="stable")
    y, p, codes = (np.asarray(a)[..., order] for a in (y, p, codes))
    w = np.ones(len(y)) if w is None else np.asarray(w, float)[order]
    n, e = len(y), y - p
    bins = min(max(n // 150, 1), 30)
    place = np.array([np.sum(p < score) * bins // n for score in p])
    groups, current = [], []
    for b in range(bins):
        current += np.flatnonzero(place == b).tolist()
        if np.sum(y[current] != 0) >= 10:
            groups.append(current)
            current = []
    if current and groups:
        groups[-1] += current
    groups = groups or [current]
    c, m, v = np.array([(p[g].mean(), e[g].mean(), e[g].var(ddof=1)) for g in groups]).T
    sigma2 = np.array([_variance_at(score, c, v) for score in p])
    z = (e - np.interp(p, c, m)) / np.sqrt(sigma2)
    coarse = min(max(n // 1000, 1), 8)
    nearest = np.searchsorted((c[1:] + c[:-1]) / 2, p, side="right") * coarse // len(c)
    for k in range(coarse):
        some = nearest == k
        if some.any():
            z[some] = (z[some] - z[some].mean()) / z[some].std()
    g3, g4 = np.mean(z**3), np.mean(z**4) - 3
    slope = 0.0
    if p.min() > 0 and len(c) >= 4:
        x, t = np.log(c), np.log(v)
        fit = np.polyfit(x, t, 1)
        error = math.sqrt(np.sum((t - np.polyval(fit, x)) ** 2) / (len(c) - 2) / np.sum((x - x.mean()) ** 2))
        slope = min(max(fit[0] - error, 0.0), 2.0)
    factor = np.ones(n)
    for column in codes:
        for level in set(column.tolist()):
            k = column == level
            if k.sum() >= min_rows:
                u, own = (w * e)[k], (w**2 * sigma2)[k]
                q, expected = np.sum(u**2) - u.sum() ** 2 / len(u), np.sum((w * p)[k])
                h = max(1.0, 1 + u.sum() / expected) ** slope if expected > 0 else 1.0
                error = math.sqrt(max(np.sum(own**2) * (g4 + 2) / own.sum() ** 2, 2 / len(u)))
                factor[k] = np.maximum(factor[k], q / (own.sum() * h) - error)
    share = np.interp(p, c, [np.mean(y[g] != 0) for g in groups])
    own = np.maximum(w**2 * sigma2 * factor, zero_odds(y, codes, share) * (w * p) ** 2)
    variance, third = np.empty(n), np.empty(n)
    variance[order], third[order] = own, g3 * own**1.5
    return variance, third, slope


def tail_of_sums(x, s, v, k3):
    """Return the default p-value of a range x with direction s, from variance and third cumulant of the sum."""
    if x == 0 or v == 0:
        return 1.0 if x == 0 else 0.0
    b = max(0.0, s * k3 / v)
    if b == 0:
        return range_tail(x / math.sqrt(v))
    u = b * x / v
    r = math.sqrt(2 * (v / b**2) * ((1 + u) * math.log1p(u) - u)) if u >= 1e-4 else x / math.sqrt(v) * math.sqrt(1 - u / 3)
    return min(1.0, range_tail(r) * max(1.0, r / 4))


def real_pvalue(y, p, w, variance, third, slope, rows, outcomes):
    """Return the p-value of a segment of real outcomes, given variance and third cumulant of its rows.

    There are ``rows`` in all, of which ``outcomes`` have an outcome other than zero.
    """
    c, x = path(y, p, w), span(y, p, w)
    w = np.ones(len(y)) if w is None else w
    s = 1 if np.argmin(c) < np.argmax(c) else -1
    residual, expected = np.sum(w * (y - p)), np.sum(w * p)
    h = max(1.0, 1 + residual / expected) ** slope if s > 0 and expected > 0 else 1.0
    own = range_tail(x * math.sqrt(h) / real_noise(y, p, w))
    factor = 1 - 3 * len(y) / rows
    factor *= 1 + 10 / math.sqrt(outcomes) if factor < 0 else 1
    return max(tail_of_sums(x, s, variance.sum(), third.sum() * factor), own)


def holm(p, shares=None):
    """Holm's adjustment, with a share of alpha per test (equal by default)."""
    p = list(p)
    shares = [1 / len(p)] * len(p) if shares is None else list(shares)
    order = sorted(range(len(p)), key=lambda i: p[i] / shares[i])
    out, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, p[i] / shares[i] * sum(shares[l] for l in order[rank:]))
        out[i] = min(1.0, worst)
    return out


def shares(segments):
    """Share of alpha of each segment, given its columns: depths, then combinations, then segments have equal shares."""
    combinations = set(segments)
    return [
        1 / len({len(one) for one in combinations})
        / sum(len(one) == len(own) for one in combinations)
        / segments.count(own)
        for own in segments
    ]  # fmt: skip


def three_se(rate, repetitions):
    """Three standard errors of a share over some repetitions."""
    return 3 * math.sqrt(rate * (1 - rate) / repetitions)


def leaf_of(forest, tree, row, levels):
    """Follow one row (features, then predictions) down one tree, node by node; return its leaf."""
    here = int(forest.root[tree])
    while here >= 0:
        at = int(forest.feature[here])
        if levels[at] >= 0:
            code = int(row[at]) if 0 <= row[at] < levels[at] else -1
            first = int(forest.words_at[here])
            words = forest.words[first : first + int(forest.words_in[here])]
            left = sum(int(word) << 32 * k for k, word in enumerate(words)) >> (code + 1) & 1
        elif math.isnan(row[at]):
            left = forest.missing_left[here]
        else:
            left = row[at] <= forest.threshold[here]
        here = int(forest.left[here] if left else forest.right[here])
    return ~here


def sum_trees(forest, X, F, levels):
    """Sum the trees of a forest for every row: X (features, rows), F (rows, outputs)."""
    out = np.zeros_like(F)
    kinds = [*levels, *[-1] * F.shape[1]]
    for i in range(len(F)):
        row = [*X[:, i].tolist(), *F[i].tolist()]
        for tree in range(len(forest.root)):
            out[i, forest.output[tree]] += forest.value[leaf_of(forest, tree, row, kinds)]
    return out


def look_up(tables, bins, X, outputs):
    """Sum pair tables for every row: X (features and predictions, rows)."""
    out = np.zeros((X.shape[1], outputs))

    def bin_of(at, value):
        if bins.categorical[at]:
            known = 0 <= value < len(bins.classes[at]) - 1
            return bins.classes[at][int(value) + 1 if known else 0]
        return len(bins.cuts[at]) + 1 if math.isnan(value) else sum(cut < value for cut in bins.cuts[at])

    for i in range(X.shape[1]):
        for a, b, output, start, rows, columns in tables.table:
            row, column = tables.places[rows + bin_of(a, X[a, i])], tables.places[columns + bin_of(b, X[b, i])]
            out[i, output] += tables.values[start + row + column]
    return out


def run_cascade(stages, levels, cascades, link, X, P):
    """Score rows stage by stage; ``link`` is "identity", "logit" or "softmax"."""
    if link == "logit":
        p = np.clip(P, 1e-6, 1 - 1e-6)
        start = np.log(p / (1 - p))
    else:
        start = np.log(np.maximum(P, 1e-6)) if link == "softmax" else P
    F = [start.copy() for _ in range(cascades)]
    for at, theta, forest in stages:
        F[at] = theta * (F[at] + sum_trees(forest, X, F[at], levels))
    mean = sum(F) / cascades
    if link == "logit":
        return 1 / (1 + np.exp(-mean))
    if link == "softmax":
        e = np.exp(mean - mean.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)
    return mean


def lce(phi, confidence, hit, w, bins, gamma, *, at=None, own=True):
    """Return signed local calibration errors, row by row: each kernel divided by that of the nearest row to avoid underflow."""
    phi, residual = np.asarray(phi, float), np.asarray(confidence, float) - np.asarray(hit, float)
    points, places = (phi, bins) if at is None else at
    found = []
    for t in range(len(points)):
        near = [i for i in range(len(phi)) if bins[i] == places[t] and w[i] > 0 and (own or at is not None or i != t)]
        far = [math.fsum(abs(a - b) for a, b in zip(phi[i], points[t], strict=True)) / phi.shape[1] for i in near]
        k = [w[i] * math.exp(-(f - min(far)) / gamma) for i, f in zip(near, far, strict=True)]
        found.append(math.fsum(a * residual[i] for a, i in zip(k, near, strict=True)) / math.fsum(k) if near else math.nan)
    return np.array(found)


def laplace_sums(points, columns, starts, targets, target_starts, scale):
    """Sums of columns times exp(-scale * L1 distance) over the rows of each target's bin, and the same of their sizes.

    Without targets: at the rows, each without itself.
    """
    alone = targets is None
    targets, target_starts = (points, starts) if alone else (targets, target_starts)
    total, size = np.zeros((2, len(targets), columns.shape[1]))
    for k in range(len(starts) - 1):
        rows, wanted = slice(starts[k], starts[k + 1]), slice(target_starts[k], target_starts[k + 1])
        far = np.abs(targets[wanted][:, None] - points[rows]).sum(axis=2)
        with np.errstate(over="ignore"):
            near = np.exp(-scale * far)
        if alone:
            np.fill_diagonal(near, 0.0)
        total[wanted], size[wanted] = near @ columns[rows], near @ np.abs(columns[rows])
    return total, size
