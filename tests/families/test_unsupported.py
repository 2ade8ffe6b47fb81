"""The types that can't be read: the list is whole, and a config of one says what it needs."""

import pytest
from transformers.models.auto import modeling_auto

from anyformer.errors import SpecError
from anyformer.explain.family_table import family_table
from anyformer.families.family import families
from anyformer.families.lookup import family_of
from anyformer.families.unsupported import NEEDS, unsupported
from tests.families.cases import BLOCKS, OWN, RIGHT, variants
from tests.generation.test_parity import ALONE

PUBLIC = {
    name
    for table in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    )
    for name in table
}
"""Every type of a text model that the public library has."""


def test_every_public_type_is_read_or_has_a_reason():
    read = {name for each in family_table() if each.state != "not supported" for name in [each.model_type]}
    assert sorted(PUBLIC - read - unsupported().keys()) == []
    assert sorted(read & unsupported().keys()) == []
    assert sorted(unsupported().keys() - PUBLIC - {"kimi_k2", "kimi_k25"}) == [], "no type of the public library"


def test_no_type_needs_two_things():
    named = [name for names in NEEDS.values() for name in names.split()]
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    "config", [{"model_type": "mamba"}, {"model_type": "mamba", "architectures": ["MambaForCausalLM"]}]
)
def test_config_of_a_type_that_can_not_be_read_says_what_it_needs(config):
    with pytest.raises(SpecError, match=r"needs state-space layers \(anyformer zoo --families lists every type\)"):
        family_of(config)


def test_family_that_a_test_compares_in_part_only_names_its_exemption():
    some = {
        family.kind
        for family in families()
        if family.kind in (*ALONE, *RIGHT) or set(variants(family.kind)) & set(BLOCKS)
    }
    exempt = {family.kind for family in families() if family.exempt}
    assert some <= exempt
    assert not exempt & set(OWN)
