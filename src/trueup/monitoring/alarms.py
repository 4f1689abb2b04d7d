"""Alarms of a monitor: where, since when, how large, which of them are one error under several names, and what to do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.monitoring.eprocess import SHIFTS, YEAR_WEEKS, onset_prior, ratio_interval
from trueup.monitoring.periods import DAYS_PER_WEEK
from trueup.monitoring.result import CERTAIN, OFFSET, REFIT, MonitorAlarm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.monitoring.eprocess import Budget
    from trueup.monitoring.periods import MonitorState

INTERVAL_LEVEL = 0.10
MAX_REMAINING_SIGMA = 2.0  # of the rows of a segment that are not in another one, for which that one explains the segment


class Dates(NamedTuple):
    """Functions that format the end of a period, and the first day on which its rows were scored."""

    end: Callable[[int], str]
    scored: Callable[[int], str]


def list_alarms(state: MonitorState, length: float, budget: Budget, dates: Dates) -> tuple[MonitorAlarm, ...]:
    """Return all alarms, the strongest evidence first; ``dates`` formats periods.

    A distinct alarm was raised when the first one was that has its error.
    """
    processes, shares = state.processes, state.segments.shares
    raised = np.flatnonzero(processes.alarm >= 0).tolist()
    order = sorted(raised, key=lambda at: (-(processes.largest[at] + math.log(shares[at])), at))
    alarms = [_alarm(state, at, length, budget, dates) for at in order]
    leaders = _leaders(state, order, alarms)
    names = [alarm.segment for alarm in alarms]
    known = {leader for at, leader in zip(order, leaders, strict=True) if at in state.reported}
    earliest = [min(int(processes.alarm[at]) for at, own in zip(order, leaders, strict=True) if own == leader)
                for leader in leaders]  # fmt: skip
    return tuple(
        replace(
            alarm,
            raised=dates.end(earliest[number]) if leader == number else alarm.raised,
            part_of=None if leader == number else names[leader],
            new=leader not in known,
            explains=tuple(
                name for name, own in zip(names, leaders, strict=True) if own == number and name != alarm.segment
            ),
        )
        for number, (alarm, leader) in enumerate(zip(alarms, leaders, strict=True))
    )


def _alarm(state: MonitorState, at: int, length: float, budget: Budget, dates: Dates) -> MonitorAlarm:
    processes, clock, share = state.processes, state.clock, state.segments.shares[at]
    assert clock.first is not None
    period, shift, counts = processes.onset(at)
    outcomes, expected, rows = counts.tolist()
    contradictions = int(processes.contradictions[at])
    onset = int(processes.contradicted[at]) if contradictions else max(period, clock.first)
    weeks = max(clock.weeks(onset, length) - float(processes.start[at]), 0.0)
    prior = float(onset_prior(weeks, weeks + length / DAYS_PER_WEEK))
    low, high = (0.0, math.inf) if contradictions else ratio_interval(outcomes, expected, rows, INTERVAL_LEVEL * prior)
    evidence = float(processes.largest[at]) + math.log(share)
    if budget == "year":  # the mean evidence of a calibrated segment is the number of years so far
        assert clock.closed is not None
        evidence -= math.log((clock.weeks(clock.closed + 1, length) - float(processes.start[at])) / YEAR_WEEKS)
    p_value = math.exp(-min(max(evidence, 0.0), 700.0))
    return MonitorAlarm(
        state.segments.labels[at], dates.end(int(processes.alarm[at])), dates.scored(onset),
        outcomes / expected if expected else math.nan, low, high, outcomes, expected, rows, p_value, contradictions, share,
        1 if SHIFTS[shift] > 0 else -1,
    )  # fmt: skip


def _leaders(state: MonitorState, order: Sequence[int], alarms: Sequence[MonitorAlarm]) -> list[int]:
    """Return for each alarm the number of the strongest one that has the same error, or its own.

    An alarm has the error of a stronger one if it is the same as that one, or as any other alarm that has its error.
    """
    places = {at: frozenset(zip(*place, strict=True)) for at, place in state.segments.places().items()}
    items = [_RaisedAlarm(at, places.get(at), alarm) for at, alarm in zip(order, alarms, strict=True)]
    groups: dict[int, list[_RaisedAlarm]] = {}
    leaders = []
    for number, item in enumerate(items):
        same = (one for one, members in groups.items() if any(_is_same(state, item, member) for member in members))
        leader = next(same, number)
        groups.setdefault(leader, []).append(item)
        leaders.append(leader)
    return leaders


class _RaisedAlarm(NamedTuple):
    at: int  # the segment
    place: frozenset[tuple[int, int]] | None  # column and level code; None of levels that are pooled
    alarm: MonitorAlarm


def _is_pooled(state: MonitorState, own: _RaisedAlarm, other: _RaisedAlarm) -> bool:
    """Return whether one alarm is that of rare and new levels, and the other, of all rows or one of them, has its error."""
    pool, level = (own, other) if own.place is None else (other, own)
    combination = next((one for one in state.segments.combinations if one.pool == pool.at), None)
    if combination is None or level.place is None or len(level.place) > 1:
        return False
    for column, code in level.place:
        if (column,) != combination.columns or code in state.segments.columns[column].listed:
            return False
    if own.alarm.contradictions:
        return True
    if own.alarm.direction != other.alarm.direction:
        return False
    if (own is pool) != bool(level.place):  # the weaker one is inside the stronger one
        return max(own.alarm.low, other.alarm.low) <= min(own.alarm.high, other.alarm.high)
    return _rest_is_right(state, own, other.at)


def _rest_is_right(state: MonitorState, own: _RaisedAlarm, part: int) -> bool:
    """Return whether the rows of an alarm that are not in the segment ``part`` of it show no error."""
    outcomes, expected, rows = (state.processes.totals[own.at] - state.processes.totals[part]).tolist()
    variance = expected * max(1.0 - expected / rows, 0.0) if rows > 0 else 0.0
    return bool(own.alarm.direction * (outcomes - expected) <= MAX_REMAINING_SIGMA * math.sqrt(max(variance, 0.0)))


def _is_same(state: MonitorState, own: _RaisedAlarm, other: _RaisedAlarm) -> bool:
    """Return whether an alarm is the error of a stronger one.

    Within the rows of the stronger one it is if its observed/expected is compatible; otherwise if the rows that it does not
    share show no error.
    """
    alarm, stronger = own.alarm, other.alarm
    if bool(alarm.contradictions) != bool(stronger.contradictions):
        return False
    totals = state.processes.totals
    if np.array_equal(totals[own.at], totals[other.at]):
        return True
    if own.place is None or other.place is None:
        return _is_pooled(state, own, other)
    both = dict(own.place | other.place)
    if len(both) < len(own.place | other.place):
        return False  # they share no row
    if alarm.contradictions:
        return own.place >= other.place or own.place <= other.place
    if not (alarm.varies or stronger.varies or alarm.direction == stronger.direction):
        return False
    if own.place >= other.place:
        return alarm.varies or stronger.varies or max(alarm.low, stronger.low) <= min(alarm.high, stronger.high)
    if alarm.varies:
        return own.place <= other.place
    columns = tuple(sorted(both))
    shared = state.segments.number_of(columns, tuple(both[column] for column in columns))
    return shared is not None and _rest_is_right(state, own, shared)


def advise(alarms: Sequence[MonitorAlarm]) -> str | None:
    """Return what to do: a shift of all scores if the alarms agree on one, else a new correction."""
    if not alarms:
        return None
    if any(alarm.contradictions for alarm in alarms):
        return CERTAIN
    whole = next((alarm for alarm in alarms if alarm.segment == "all rows"), None)
    leads = [alarm for alarm in alarms if alarm.part_of is None]
    if whole is None or whole.varies or len(leads) > 1:
        return REFIT
    agree = all(alarm.low <= whole.ratio <= alarm.high for alarm in alarms if alarm.rows > 0)
    return OFFSET if agree else REFIT
