"""Profiles: the words, tables and defaults of a trade. Words and tables never change a number.

A profile is one small TOML file in this folder; `declared` reads it, `drawn` makes the sections that it asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.reports.profiles.declared import PROFILES, Profile, SectionPlan, Words, load_profile

if TYPE_CHECKING:
    from trueup.audits.result import Audit
    from trueup.reports.view import Section

__all__ = ["PROFILES", "Profile", "SectionPlan", "Words", "load_profile", "sections"]


def sections(audit: Audit, profile: Profile | str = "general") -> tuple[Section, ...]:
    """Make the parts of a page that a profile adds.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(2_000, seed=1)
    >>> found = tu.audit(data, outcome="outcome", prediction="prediction", by=["region"])
    >>> [section.title for section in sections(found, "credit")]
    ['PD and default rate by grade']
    """
    from trueup.reports.profiles.drawn import draw

    given = profile if isinstance(profile, Profile) else load_profile(profile)
    return draw(audit, given)
