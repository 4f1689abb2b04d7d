"""Floors of probabilities before logarithms: 0 and 1 have no logit.

A floor is a pair: the distance that probabilities keep from 0, and the distance they keep from 1. Without exact zeros (or
ones) it is the precision of numbers near 1, 2.2e-16; near 0 it is 1e-300 for several classes. The floor of exact zeros is
the smallest positive score of the training rows, at most 1e-6: the 0 of a forest, a share of its trees, is not as certain
as the 0 of a softmax that underflows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.cluster.communicator import SINGLE_PROCESS, Communicator
from trueup.kernels.trees import MIN_PROBABILITY

if TYPE_CHECKING:
    from trueup._types import FloatArray

Floors = tuple[float, float]
EPS = float(np.finfo(np.float64).eps)  # below it 1 - p has no digits left
MIN_FLOOR = 1e-304  # the smallest floor, that of imported models: with it, 1 has a logit of its own
TINY = 1e-300  # of the probabilities of several classes, whose logarithms are precise however small they are
OLD_FLOORS: Floors = (MIN_PROBABILITY, MIN_PROBABILITY)  # of files that state none


def find_floors(prediction: FloatArray, communicator: Communicator = SINGLE_PROCESS) -> Floors:
    """Return the floors of scores such as these, (n,) or (n, classes): of the rows of all workers."""
    least = (EPS if prediction.ndim == 1 else TINY, EPS)
    sides = (prediction, 1.0 - prediction)
    smallest = [-float(side.min(initial=1.0, where=side > 0)) for side in sides]
    certain = [float(bool((side <= 0).any())) for side in sides]
    low, high, any_0, any_1 = (float(value) for value in communicator.all_reduce_max([*smallest, *certain]))
    pairs = zip((-low, -high), (any_0, any_1), least, strict=True)
    first, second = (max(min(own, MIN_PROBABILITY), limit) if exact else limit for own, exact, limit in pairs)
    return first, second


def raise_zeros(prediction: FloatArray) -> FloatArray:
    """Return probabilities with 1e-6 in place of exact zeros, and 1 - 1e-6 in place of exact ones."""
    raised = np.where(prediction <= 0, MIN_PROBABILITY, prediction)
    return np.where(raised >= 1, 1.0 - MIN_PROBABILITY, raised)


def clip_scores(prediction: FloatArray, floors: Floors) -> FloatArray:
    """Return probabilities at least ``floors`` from 0 and 1."""
    return np.clip(prediction, floors[0], 1.0 - floors[1])
