"""The sections of docs/evidence.md on materiality and distinct problems."""

from __future__ import annotations

from pages import figures, table


def materiality() -> list[str]:
    found = figures("materiality")
    alarms = [
        [
            name, f"{cell['detected']:.3f}", f"{cell['material']['value']:.3f}",
            f"{cell['within']['value']:.3f}" if "within" in cell else "-",
        ]
        for name, cell in found["alarms"].items()
    ]  # fmt: skip
    power = [[name, f"{share:.2f}"] for name, share in found["power"].items()]
    problems = [
        [
            name, f"{cell['rows']:,}", f"{cell['segments']:,}", f"{cell['findings']:,}", f"{cell['problems']:,}",
            f"{cell['common']:.2f}", f"{cell['audit_s']:.2f}", f"{cell['problems_s']:.2f}",
        ]
        for name, cell in found["problems"].items()
    ]  # fmt: skip
    return [
        "## Materiality",
        "",
        f"5,000 rows of three columns, about 175 segments, {found['repetitions']} repetitions per line. Errors lie exactly "
        "at the tolerance: the share of audits that find something significant, that call something material, and (where "
        "all rows are at the tolerance) within tolerance, at 5%. Each of the last two should be at most 5%, up to chance.",
        "",
        *table(["tolerance and data", "significant", "material", "within tolerance"], alarms),
        "",
        "Errors beyond the tolerance, a quarter of the repetitions:",
        "",
        *table(["tolerance and data", "material"], power),
        "",
        "## Distinct problems",
        "",
        "Scores of models of real data (bench/cases.py; rows that the model was not fitted on), audited with all columns "
        "at depth 2: significant findings, distinct problems among the strongest 512 of them, the largest share of rows "
        "(of the rows of either) that two problems have in common, and CPU seconds of the audit and of the search.",
        "",
        *table(
            ["data and model", "rows", "segments", "findings", "problems", "in common", "audit, s", "search, s"], problems
        ),
        "",
        f"`python bench/materiality.py --repetitions {found['repetitions']}`",
        "",
    ]
