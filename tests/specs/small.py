"""A small decoder as plain data, and the problems that a change of it gives."""

import copy
from typing import Any

import pytest

from anyformer.errors import SpecError
from anyformer.specs import ModelSpec

SMALL: dict[str, Any] = {
    "vocab": 32,
    "width": 16,
    "depth": 4,
    "context": 32,
    "attention": {"heads": 4, "kv_heads": 2},
}


def data_with(changes: dict[str, Any]) -> dict[str, Any]:
    """The small decoder's data with dotted keys set (None: removed). No library code: it may not hide its mistakes."""
    data = copy.deepcopy(SMALL)
    for path, value in changes.items():
        *parents, last = path.split(".")
        table = data
        for parent in parents:
            table = table.setdefault(parent, {})
        if value is None:
            table.pop(last)
        else:
            table[last] = copy.deepcopy(value)
    return data


def small(changes: dict[str, Any] | None = None) -> ModelSpec:
    return ModelSpec.from_data(data_with(changes or {}))


def problems_of(data: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_data(data)
    return list(caught.value.problems)


def problems_with(changes: dict[str, Any]) -> list[str]:
    return problems_of(data_with(changes))


def problems_of_varying(spec: ModelSpec, changes: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec.vary(changes)
    return list(caught.value.problems)
