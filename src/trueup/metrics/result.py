"""Base class of result dataclasses, and tables of results for notebooks."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from trueup.data.columns import to_jsonable

MAX_CELL_LENGTH = 200  # characters


class Result:
    """A dataclass that converts itself, with everything nested in it, to plain values."""

    __dataclass_fields__: dict[str, Any]
    derived: ClassVar[tuple[str, ...]] = ()  # properties that the dict contains too

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; non-finite numbers become None."""
        return {name: to_plain(getattr(self, name)) for name in (*self.__dataclass_fields__, *self.derived)}


def to_plain(value: Any) -> Any:
    """Convert nested results to plain values that JSON can represent."""
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return to_jsonable(value)


def html_table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, bold: Collection[int] = (),
    notes: Iterable[str] = (),
) -> str:  # fmt: skip
    """Return a table for notebooks: title, headings, rows (positions in ``bold`` are emphasized), notes below it.

    All texts are escaped, and styles are inline. The first column is aligned to the left.
    """
    cell = "padding:3px 9px;border-bottom:1px solid rgba(128,128,128,.3);background:none;color:inherit;text-align:{}"
    left, right = (f' style="{cell.format(side)}"' for side in ("left", "right;white-space:nowrap"))
    head = "".join(f"<th scope=col{right if at else left}>{html.escape(name)}</th>" for at, name in enumerate(heads))
    body = []
    for position, row in enumerate(rows):
        name, *cells = (html.escape(_printable(text)) for text in row)
        weight = "bold" if position in bold else "normal"
        body.append(
            f'<tr><th scope=row{left[:-1]};font-weight:{weight}"><bdi>{name}</bdi></th>'
            + "".join(f'<td{right[:-1]};font-weight:{weight}">{text}</td>' for text in cells)
            + "</tr>"
        )
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    below = f"<ul>{items}</ul>" if items else ""
    return (
        f'<div><p><strong>{html.escape(title)}</strong></p><div style="overflow-x:auto">'
        f'<table style="border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{below}</div>"
    )


def _printable(text: str) -> str:
    """Return a text on one line, without control characters, cut to MAX_CELL_LENGTH."""
    clean = "".join(letter if letter.isprintable() else "·" for letter in text)
    return clean if len(clean) <= MAX_CELL_LENGTH else f"{clean[: MAX_CELL_LENGTH - 1]}…"
