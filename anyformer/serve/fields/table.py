"""The table of an endpoint's fields: reads a whole body, and says all that is wrong with it at once."""

from dataclasses import dataclass
from typing import Any

from anyformer.serve.errors import ApiError
from anyformer.serve.fields.kinds import Record

MOST = 8
"""Problems that one answer lists."""


@dataclass(frozen=True)
class Table:
    """What an endpoint reads."""

    record: Record
    summary: str = ""
    """What the endpoint does, for the OpenAPI document."""

    def read(self, body: Any) -> dict[str, Any]:
        """All fields with their defaults; raises ApiError(400)."""
        found, wrong = self.record.collect(body, "")
        if not wrong:
            return found
        message = "; ".join(map(str, wrong[:MOST])) + (f"; and {len(wrong) - MOST} more" if len(wrong) > MOST else "")
        raise ApiError(400, message, param=wrong[0].where, code=wrong[0].code)
