"""What results print: coverage of explanations, corrections without outcomes, savings, and own scores."""

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError


@pytest.fixture(scope="module")
def loans():
    return tu.simulate.lending(4000, seed=0)


def test_an_explanation_states_which_share_of_the_changes_it_explains(loans):
    found = tu.Logistic("prediction", ["region"]).fit(loans, loans["outcome"]).explain()
    text = f"the {len(found.corrections)} largest corrections explain {100 * found.explained_share:.0f}% of the squared changes"
    assert found.coverage() == text
    assert text in repr(found)
    assert text in found._repr_html_()


def test_corrections_of_the_score_alone_are_disjoint_and_named_by_their_scores(loans):
    for fix in (tu.PriorCorrection("prediction", prevalence=0.2), tu.Platt("prediction")):
        found = fix.fit(loans, loans["outcome"]).explain().corrections
        assert len({one.segment for one in found}) == len(found) > 1
        ordered = sorted(found, key=lambda one: one.low)
        assert all(one.high < other.low for one, other in zip(ordered, ordered[1:], strict=False))
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
