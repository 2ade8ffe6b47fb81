"""Objects whose fields depend on one of them, such as `type`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.serve.fields.kinds import Kind, Record, Wrong, shown


@dataclass(frozen=True)
class Tagged(Kind):
    """One of some records, which a key tells apart."""

    key: str
    records: Mapping[str, Record]
    refused: Mapping[str, str] | None = None
    """Tags that are known but not served, and why."""
    default: str | None = None
    """What an absent tag means; None: it may not be absent."""

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(value, where)
        tag = value.get(self.key)
        tag = self.default if tag is None else tag
        if isinstance(tag, str) and self.refused is not None and tag in self.refused:
            raise Wrong(f"{where}.{self.key}", f"{shown(tag)} is not supported here: {self.refused[tag]}", "unsupported_value")  # fmt: skip
        if not isinstance(tag, str) or tag not in self.records:
            known = ", ".join(map(repr, self.records))
            raise Wrong(f"{where}.{self.key}", f"{shown(tag)} is not one of {known}")
        return self.records[tag].read(value, where)

    def schema(self) -> dict[str, Any]:
        found = [(tag, record.schema()) for tag, record in self.records.items()]
        return {
            "oneOf": [each | {"properties": each["properties"] | {self.key: {"const": tag}}} for tag, each in found]
        }

    def words(self) -> str:
        return f"an object whose {self.key} is one of {', '.join(map(repr, self.records))}"
