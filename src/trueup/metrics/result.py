"""Base class of result dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueup.data.frame import to_jsonable


class Result:
    """A dataclass that converts itself, with everything nested in it, to plain values."""

    __dataclass_fields__: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; non-finite numbers become None."""
        return {name: _to_plain(getattr(self, name)) for name in self.__dataclass_fields__}


def _to_plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): _to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return to_jsonable(value)
