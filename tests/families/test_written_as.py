"""Which class a model that was built here is written as."""

import pytest

from anyformer.errors import SpecError
from anyformer.families.checkpoint import family_for
from anyformer.families.family import families
from anyformer.families.zoo import find, presets

READ = {family.kind for family in families()}
NAMES = {family.kind: preset.name for family, preset in reversed(presets().values()) if family.kind in READ}.values()
"""The first of each family: the others differ in their sizes."""
ALIKE = {"mistral": {"llama"}, "mt5": {"t5"}, "mvp": {"bart"}, "phi3": {"llama", "mistral"}, "plbart": {"bart"}}
"""Families of which some models are another's, to the last tensor."""
UNWRITTEN = ("transformer-base", "transformer-big")
"""Presets of the paper, which differ from the public class in a bias."""


def test_preset_of_a_public_class_is_written_as_it():
    wrong = {}
    for name in NAMES:
        if name not in UNWRITTEN:
            family, preset = find(name)
            found = family_for(family.varied(preset.changes))[0].kind
            if found != family.kind and found not in ALIKE.get(family.kind, ()):
                wrong[name] = found
    assert not wrong


def dense(changes):
    """A small LLaMA with some changes."""
    family, preset = find("llama-3-8b")
    return family.varied(preset.changes | {"width": 96, "attention.heads": 8, "attention.kv_heads": 4} | changes)


def test_dense_spec_is_written_as_no_class_with_experts():
    found, _ = family_for(dense({}))
    assert found.kind == "llama"
    with pytest.raises(SpecError) as info:
        family_for(dense({"norm.placement": "output"}))
    assert "experts" not in str(info.value)
