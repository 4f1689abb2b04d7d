"""What results print: coverage of explanations, corrections without outcomes, savings, and own scores."""

import itertools

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError


@pytest.fixture(scope="module")
def loans():
    return tu.simulate.lending(4000, seed=0)


def test_an_explanation_states_which_share_of_the_changes_it_explains(loans):
    found = tu.Logistic("prediction", ["region"], stopping=None).fit(loans, loans["outcome"]).explain()
    text = f"the {len(found.corrections)} largest corrections explain {100 * found.explained_share:.0f}% of the squared changes"
    assert found.coverage() == text
    assert text in repr(found)
    assert text in found._repr_html_()


def test_corrections_of_the_score_alone_are_disjoint_and_named_by_their_scores(loans):
    for fix in (tu.PriorCorrection("prediction", prevalence=0.2), tu.Platt("prediction")):
        found = fix.fit(loans, loans["outcome"]).explain().corrections
        assert len({one.segment for one in found}) == len(found) > 1
        ordered = sorted(found, key=lambda one: one.low)
        assert all(one.high < other.low for one, other in itertools.pairwise(ordered))
        assert ordered[0].segment == f"scores {ordered[0].low:.4g} to {ordered[0].high:.4g}"


def test_no_losses_are_printed_without_outcomes():
    p = np.random.default_rng(0).random(200)
    fix = tu.PriorCorrection(prevalence=0.2).fit(p)
    for text in (repr(fix.history_), fix.history_._repr_html_(), repr(fix.model_)):
        assert "loss" not in text
    assert "stated 0.2" in repr(fix.history_)
    assert "not evaluated" in repr(fix.model_)


def test_the_hint_for_shares_above_one_names_no_parameter_that_is_not_there():
    with pytest.raises(ArgumentError, match=r"write 0\.1 if one in 10 was kept") as error:
        tu.PriorCorrection(sampling={"negative": 10}).fit(np.array([0.1, 0.2]))
    assert "weight" not in str(error.value)


def test_a_saving_is_printed_as_one():
    saved = tu.decisions.expected_saving([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, 0.2, 0.5, segments={"g": ["a", "a", "b"]})
    assert repr(saved).startswith("<ExpectedSaving 0.8 of 3 rows")
    assert all(repr(own).startswith("<ExpectedSaving") for own in saved.by_segment.values())
    assert repr(tu.decisions.expected_cost([0.1], {"fn": 5, "fp": 1}, 0.2)).startswith("<ExpectedCost")


@pytest.mark.parametrize("score", [lambda y, p: 0.0, lambda y, p, *, weight: 0.0, lambda y, p, weight, more: 0.0])
def test_a_score_must_take_outcomes_scores_and_weights(score):
    with pytest.raises(ArgumentError, match=r"def score\(y, p, weight\)"):
        tu.CrossValidation(5, score=score)
    assert tu.CrossValidation(5, score=tu.metrics.ece).score is tu.metrics.ece


def test_the_reason_counts_the_rounds_that_were_tried_in_vain():
    more = tu.simulate.lending(20_000, seed=0)
    rule = tu.Holdout(0.3, patience=2)
    history = tu.MCGrad("prediction", ["region"], stopping=rule, depth=2).fit(more, more["outcome"]).history_
    assert history.chosen
    tried = len(history.rounds) - 1 - history.chosen
    assert tried > 1
    assert f"the next {tried} rounds did not lower it" in history.reason


def test_the_figure_marks_the_chosen_round_at_its_number_of_trees(loans):
    fix = tu.MCGrad("prediction", ["region", "age"], depth=2).fit(loans, loans["outcome"])
    ax = tu.figures.draw_history(fix)
    history = fix.history_
    assert history.chosen
    mark = next(line for line in ax.get_lines() if str(line.get_label()).startswith("chosen"))
    assert list(mark.get_xdata()) == [sum(own.trees for own in history.rounds[: history.chosen + 1])]
    plain = tu.MCGrad("prediction", ["region"], stopping=None, trees=5).fit(loans, loans["outcome"])
    labels = [line.get_label() for line in tu.figures.draw_history(plain).get_lines()]
    assert labels.count("training rows") == 1


def test_of_many_classes_the_others_are_one_column_and_rows_add_up_to_zero():
    random = np.random.default_rng(0)
    P = random.dirichlet(np.ones(5), 800)
    group = random.integers(0, 2, 800)
    y = np.where((group == 1) & (random.random(800) < 0.5), 4, [random.choice(5, p=p) for p in P])
    data = {f"p{c}": P[:, c] for c in range(5)} | {"g": group.astype(str)}
    fix = tu.MCGrad([f"p{c}" for c in range(5)], ["g"], stopping=None, trees=5).fit(data, y)
    headings, lines = fix.explain({name: column[0] for name, column in data.items()}).table()
    assert headings[-1] == "2 other classes (points)"
    assert len(headings) == 5
    for _, *changes in lines:
        assert sum(map(float, changes)) == pytest.approx(0, abs=0.03)
