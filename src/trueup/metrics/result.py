"""Base class of result dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trueup.data.columns import to_jsonable


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
