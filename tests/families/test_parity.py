"""Every family against its published class: logits in fp64, and weights there and back to the last bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.families.checkpoint import published, save_published
from anyformer.families.family import Family, families
from anyformer.families.io import load
from tests.families.cases import BLOCKS, COUNTED, LENGTHS, RIGHT, WITHIN, cases, config_of, gathered
from tests.families.oracle import answer, in_files, inputs, is_ignored, oracle, public_class
from tests.quick import quick
from tests.tolerances import assert_close

QUICK = [(kind, "tiny") for kind in ("llama", "gpt2", "bert", "t5", "gemma2")]
LENGTH = 21
"""Longer than every window, trained length and bucket range of the small configs."""


class Case:
    """A public model, saved by its own library, and ours, loaded from that directory."""

    def __init__(self, kind: str, variant: str, folder: Path) -> None:
        found = Family.named(kind)
        assert found is not None
        self.family, self.variant = found, variant
        self.config = config_of(kind, variant)
        self.theirs = oracle(found, self.config)
        self.theirs.save_pretrained(folder)
        if not self.config.get("tie_word_embeddings", True):
            # What released files say; this release writes that every T5 is tied.
            self.edit(folder, tie_word_embeddings=False)
        self.folder = folder
        self.ours = load(folder, dtype=torch.float64)
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(3, self.ours.spec.input_vocab or 61, (2, LENGTH), generator=generator)
        self.target = torch.randint(3, self.ours.spec.vocab or 61, (2, LENGTH - 4), generator=generator)

    @staticmethod
    def edit(folder: Path, **changes: Any) -> None:
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    @property
    def topology(self) -> str:
        return self.ours.spec.topology


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    kept: dict[tuple[str, str], Case] = {}

    def make(kind: str, variant: str) -> Case:
        if (kind, variant) not in kept:
            kept[kind, variant] = Case(kind, variant, tmp_path_factory.mktemp("saved"))
        return kept[kind, variant]

    return make


def pytest_generate_tests(metafunc):
    if "variant" in metafunc.fixturenames:
        some = [
            pytest.param(*case, marks=[quick] if case in QUICK else [], id="-".join(case)) for case in cases()
        ]  # fmt: skip
        metafunc.parametrize(("kind", "variant"), some)


@torch.no_grad()
def test_logits_of_a_whole_sequence_equal_the_published(made, kind, variant):
    case = made(kind, variant)
    if case.topology == "encoder-decoder":
        ours = case.ours(case.ids, decoder_input_ids=case.target).logits
        theirs = answer(case.theirs, input_ids=case.ids, decoder_input_ids=case.target)
    elif case.topology == "encoder":
        count, given = case.ours.spec.embed.token_types, inputs(case.ours.spec, case.ids)
        types = torch.arange(LENGTH).expand(2, -1) % count if count else None
        ours = case.ours(**given, token_types=types).logits
        theirs = answer(case.theirs, **given, token_type_ids=types)
    else:
        ours = case.ours(case.ids).logits
        theirs = answer(case.theirs, input_ids=case.ids)
    assert_close("oracle", ours, theirs)


@torch.no_grad()
def test_logits_of_padded_rows_equal_the_published(made, kind, variant):
    case = made(kind, variant)
    if variant in LENGTHS:
        pytest.skip("its angles depend on the length, which the public class takes from the longest row")
    if case.ours.spec.embed.kind != "tokens":
        pytest.skip("an image has no padding")
    if variant in BLOCKS:
        pytest.skip("its public class counts padding when it cuts a row into blocks")
    pad = 6
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    if case.topology == "encoder-decoder":
        # Marian's encoder counts padding as positions and takes no others, so padding is on the right here.
        mask[1, -pad:] = 0
        ours = case.ours(case.ids, attention_mask=mask, decoder_input_ids=case.target).logits
        theirs = answer(case.theirs, input_ids=case.ids, attention_mask=mask, decoder_input_ids=case.target)
        assert_close("oracle", ours, theirs)
        return
    right = variant in RIGHT or kind in RIGHT
    mask[1, -pad if right else 0 : None if right else pad] = 0
    ids, places = case.ids, {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    if kind in COUNTED:
        assert case.ours.spec.ids.pad is not None
        ids, places = ids.masked_fill(mask == 0, case.ours.spec.ids.pad), {}
    ours = case.ours(ids, attention_mask=mask).logits
    theirs = answer(case.theirs, input_ids=ids, attention_mask=mask, **places)
    real = mask.bool()
    assert_close("oracle", ours[real], theirs[real])


@torch.no_grad()
def test_logits_fed_in_two_parts_with_a_cache_equal_the_published(made, kind, variant):
    case = made(kind, variant)
    if case.topology == "encoder":
        pytest.skip("an encoder has no cache")
    approximate = any(not layer.attention.mixer.exact for layer in case.ours.spec.stacks[-1].layers)
    if approximate and variant not in WITHIN:
        pytest.skip("beyond one chunk it sees more keys with a cache than without")
    cut = 8
    two = case.topology == "encoder-decoder"
    tokens = case.target if two else case.ids
    cache = case.ours.new_cache(2, tokens.shape[1])
    if two:
        theirs = answer(case.theirs, input_ids=case.ids, decoder_input_ids=tokens)
        first = case.ours(case.ids, decoder_input_ids=tokens[:, :cut], cache=cache).logits
        second = case.ours(decoder_input_ids=tokens[:, cut:], cache=cache).logits
    else:
        theirs = answer(case.theirs, input_ids=tokens)
        first, second = (case.ours(part, cache=cache).logits for part in (tokens[:, :cut], tokens[:, cut:]))
    assert_close("oracle", torch.cat((first, second), 1), theirs)


def test_export_gives_the_published_tensors_bit_for_bit(made, kind, variant):
    case = made(kind, variant)
    exported = dict(published(case.ours, case.family))
    table = case.family.weights(case.ours.spec)
    known = exported.keys() | table.copies.keys()
    theirs = {table.current(name, known): tensor for name, tensor in in_files(case.theirs).items()}
    left = {name for name in theirs if name not in exported and name not in table.copies}
    assert {name for name in left if not is_ignored(name, table)} == set()
    for name, tensor in exported.items():
        assert torch.equal(tensor, theirs[name]), name
    if "final_logits_bias" not in theirs:  # a buffer of theirs
        learned = [p.numel() for name, p in case.theirs.named_parameters() if not is_ignored(name, table)]
        # Biases of routers are buffers of theirs.
        learned += [t.numel() for name, t in case.theirs.named_buffers() if name.endswith("e_score_correction_bias")]
        assert sum(t.numel() for t in exported.values()) == sum(learned)


def test_config_written_from_a_spec_reads_back_equal(made, kind, variant):
    case = made(kind, variant)
    assert case.family.spec_from(case.family.hf_from(case.ours.spec)) == case.ours.spec
    assert case.family.spec_from(case.config) == case.ours.spec, "their config.json against the keys it was made from"


def test_saved_in_two_shards_loads_here_and_in_the_public_library(made, kind, variant, tmp_path):
    case = made(kind, variant)
    total = sum(p.numel() for p in case.ours.parameters()) * 8
    save_published(case.ours, tmp_path, family=kind, shard_bytes=total * 2 // 3)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) >= 2
    again = load(tmp_path, dtype=torch.float64)
    assert again.spec == case.ours.spec
    for (name, a), (_, b) in zip(again.named_parameters(), case.ours.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    public, table = type(case.theirs).from_pretrained(tmp_path, dtype=torch.float64), case.family.weights(again.spec)
    wanted = case.theirs.state_dict()
    for name, tensor in public.state_dict().items():
        # The public class holds Reformer's axial tables in fp32, whatever it is asked for.
        assert is_ignored(name, table) or torch.equal(tensor, wanted[name].to(tensor.dtype)), name


@pytest.mark.parametrize("family", families(), ids=[family.kind for family in families()])
def test_default_config_of_the_public_class_is_read_without_complaint(family):
    # Some classes are decoders only if told.
    told = {name: value for name, value in family.small.items() if name == "is_decoder"}
    told |= gathered("TOLD").get(family.kind, {})
    config = public_class(family).config_class(**told)
    spec = family.spec_from(config.to_dict())
    assert family.spec_from(told) == spec, "an absent key must mean what the public class means by it"


@pytest.mark.parametrize("family", families(), ids=[family.kind for family in families()])
def test_class_saved_without_its_head_prefix_is_read(made, family, tmp_path):
    case = made(family.kind, "tiny")
    table = family.weights(case.ours.spec)
    if not table.prefix:
        pytest.skip("this family's names have no prefix")
    from safetensors.torch import save_file

    bare = {name.removeprefix(table.prefix): t.contiguous() for name, t in published(case.ours, family)}
    save_file(bare, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(family.hf_from(case.ours.spec)))
    again = load(tmp_path, dtype=torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), case.ours.parameters(), strict=True))


def test_load_is_reached_from_the_package(made):
    case = made("llama", "tiny")
    assert af.load(case.folder).spec == af.spec(case.folder) == case.ours.spec
