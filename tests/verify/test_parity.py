"""`parity` over every family: the same computation is found the same, and damage where it was done."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import InputError
from anyformer.families.family import families
from anyformer.verify.parity import LIFTED, LIMITS, _row, parity, public, quiet
from tests.families.cases import OWN
from tests.families.oracle import oracle, public_class

KINDS = [family.kind for family in families() if family.kind not in OWN]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The tiny model of each family, saved by its own library."""
    kept = {}

    def save(kind):
        if kind not in kept:
            kept[kind] = tmp_path_factory.mktemp(kind)
            family = next(family for family in families() if family.kind == kind)
            oracle(family, family.small).save_pretrained(kept[kind])
            if not family.small.get("tie_word_embeddings", True):
                # What released files say; this release writes that every T5 is tied.
                config = json.loads((kept[kind] / "config.json").read_text()) | {"tie_word_embeddings": False}
                (kept[kind] / "config.json").write_text(json.dumps(config))
        return kept[kind]

    return save


@pytest.mark.parametrize("kind", KINDS)
def test_parity_of_every_family_passes_in_every_layer(saved, kind):
    folder = saved(kind)
    found = parity(folder)
    comparison = found.comparisons[0]
    assert found.same, comparison.first
    # A head may read one vector of a row, or public classes hand out what it reads in another width.
    assert all(note.startswith("final hidden") for note in comparison.notes), comparison.notes
    spec = af.spec(folder)
    places = [row.place for row in comparison.rows]
    for stack in spec.stacks:
        assert [p for p in places if p.startswith(f"{stack.name} ")] == [
            f"{stack.name} embedding", *(f"{stack.name} layer {i}" for i in range(stack.depth))
        ]  # fmt: skip
    assert places[-1] == "logits"
    assert comparison.rows[-1].top1 == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_parity_compares_with_the_class_as_from_pretrained_gives_it(saved, kind):
    family = next(family for family in families() if family.kind == kind)
    with quiet():
        reference = public(saved(kind), None, torch.float32)
        loaded = public_class(family).from_pretrained(saved(kind), dtype=torch.float32)
    assert type(reference) is type(loaded)
    assert not reference.training
    assert reference.config.to_dict() == loaded.config.to_dict()
    theirs = loaded.state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in reference.state_dict().items())


def test_parity_says_what_it_makes_of_the_reference(saved):
    assert parity(saved("llama")).settings == (LIFTED,)
    assert parity(saved("llama"), dtype=torch.float32).settings == ()


# Families take turns: what is found has nothing of theirs.
@pytest.mark.parametrize("kind", KINDS[::4])
def test_parity_names_the_first_layer_that_was_damaged(saved, kind, tmp_path):
    folder = saved(kind)
    family = next(family for family in families() if family.kind == kind)
    model = af.load(folder, dtype=torch.float64)
    stack = model.spec.stacks[-1]
    wanted = f"{stack.name}.blocks.1.ffn.body.down.weight"
    entries = family.weights(model.spec).entries(model.spec)
    theirs = next((entry.theirs for entry in entries if wanted in entry.ours), None)
    if theirs is None:
        theirs = next(e.theirs for e in entries if any(n.startswith(f"{stack.name}.blocks.1.") for n in e.ours))
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[theirs] = tensors[theirs] * 1.001
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    for pair in ((folder, tmp_path), (tmp_path, folder)):
        found = parity(pair[0], against=pair[1])
        assert not found.same
        first = found.comparisons[0].first
        assert first is not None
        assert first.place == f"{stack.name} layer 1", f"{theirs} was damaged"
    rows = found.comparisons[0].rows
    assert all(row.same for row in rows[: [row.place for row in rows].index(f"{stack.name} layer 1")])


def test_parity_tells_a_damaged_table_from_a_damaged_layer(saved, tmp_path):
    shutil.copytree(saved("llama"), tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.embed_tokens.weight"][:, 0] += 0.1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    found = parity(tmp_path, against=saved("llama"))
    assert found.comparisons[0].first.place == "decoder embedding"
    tensors = load_file(saved("llama") / "model.safetensors")
    tensors["model.norm.weight"][0] += 0.1
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    found = parity(tmp_path, against=saved("llama"))
    assert found.comparisons[0].first.place == "final hidden"


def test_parity_of_a_config_that_says_otherwise_is_seen(saved, tmp_path):
    shutil.copytree(saved("llama"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rms_norm_eps"] = 1e-4
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = parity(tmp_path, against=saved("llama"))
    assert found.comparisons[0].first.place == "decoder layer 0"


def test_parity_in_single_precision_has_its_own_limit(saved):
    found = parity(saved("llama"), dtype=torch.float32)
    assert found.same
    assert found.limit == LIMITS[torch.float32]
    assert max(row.max for row in found.comparisons[0].rows) > 1e-9
    with pytest.raises(InputError, match=r"bfloat16 is none of"):
        parity(saved("llama"), dtype=torch.bfloat16)


def test_parity_of_our_own_format_hands_the_weights_over(saved, tmp_path):
    af.save(af.load(saved("bert"), dtype=torch.float64), tmp_path)
    assert parity(tmp_path).same
    assert parity(tmp_path, against=saved("bert")).same
    assert parity(saved("bert"), against=tmp_path).same


def test_parity_beyond_the_table_of_positions_is_refused(saved):
    with pytest.raises(InputError, match="length: 4000 is more than the"):
        parity(saved("gpt2"), length=4000)


def test_parity_leaves_the_default_dtype_as_it_was(saved):
    before = torch.get_default_dtype()
    parity(saved("llama"))
    assert torch.get_default_dtype() == before


def test_difference_of_what_is_not_finite_is_infinite():
    def compared(a, b):
        row = _row("here", "there", torch.tensor(a), torch.tensor(b), 1e-3)
        return row.max, row.mean, row.same

    assert compared([1.0, float("nan")], [1.0, 1.0]) == (float("inf"), float("inf"), False)
    assert compared([2.0, 1.0], [1.0, 1.0]) == (1.0, 0.5, False)
    assert compared([1.0, 1.0], [1.0, 1.0]) == (0.0, 0.0, True)
