"""A map that leaves every score as it is, in a file: nothing but its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.calibrators.maps.base import Unchanged
from trueup.calibrators.maps.reading import require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup.data.schema import Schema


def write(found: Unchanged) -> tuple[dict[str, Any], dict[str, bytes]]:  # noqa: ARG001
    """Give the entry of the manifest, and the parts."""
    return {}, {}


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> Unchanged:  # noqa: ARG001
    """Make the map again."""
    require(not parts, "it has parts that it does not speak of")
    return Unchanged()
