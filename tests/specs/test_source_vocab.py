"""A vocabulary of the source's own: what a spec says of it, counts with it, and refuses."""

import anyformer as af
from anyformer.families.facts import differences
from anyformer.specs.model import ModelSpec
from anyformer.train.distributed.tensor_parallel import cuts
from anyformer.verify.shrink import small

TWO = {
    "topology": "encoder-decoder", "vocab": 37, "source_vocab": 53, "width": 24, "depth": 2, "context": 32,
    "attention": {"heads": 4}, "embed": {"kind": "tokens", "shared": False}, "head": {"kind": "lm", "tied": True},
    "ids": {"start": 1, "pad": 0, "eos": [2]},
}  # fmt: skip


def test_source_vocab_unset_is_left_out_of_what_is_written():
    spec = af.spec(TWO | {"source_vocab": "none"})
    assert "source" not in spec.to_toml()
    assert (spec.source_vocab, spec.input_vocab) == (None, 37)


def test_source_vocab_set_is_written_and_read_back_equal():
    spec = af.spec(TWO, {"ids.source_pad": 50, "ids.source_eos": 51})
    assert ModelSpec.from_toml(spec.to_toml()) == spec
    assert (spec.input_vocab, spec.input_pad) == (53, 50)
    assert spec.vary({"source_vocab": None, "ids.source_pad": None, "ids.source_eos": None}).input_vocab == 37


def test_source_vocab_counts_a_table_for_each_stack():
    spec = af.spec(TWO)
    sizes = {name: w.shape for name, w in spec.count().weights.items() if w.role == "embedding"}
    assert sizes == {"embed.tokens.weight": (53, 24), "decoder_embed.tokens.weight": (37, 24)}
    same = spec.vary({"source_vocab": None})
    assert spec.count().params - same.count().params == (53 - 37) * 24
    assert spec.count().embedding_params == (53 + 37) * 24
    # A look-up costs no product, and logits are of the target.
    assert spec.count().flops(16, 9) == same.count().flops(16, 9)
    assert spec.count().flops(16, 9).head == 2 * 16 * 37 * 24


def test_tables_of_two_vocabularies_are_whole_on_every_process_that_shares_products():
    found = cuts(af.spec(TWO), 2)
    assert [found[f"{name}.tokens.weight"].dim for name in ("embed", "decoder_embed")] == [None, None]


def test_source_vocab_of_a_spec_made_small_stays_another_than_the_target():
    made = small(af.spec("wmt19-ru-en"))
    assert made.source_vocab not in (None, made.vocab)
    assert made.count().params < 10**6


def test_source_vocab_is_a_difference_between_specs_and_its_own_size_alone_is_none():
    spec = af.spec(TWO)
    assert differences(spec, spec.vary({"source_vocab": 54})) == [("source_vocab", 53, 54)]
    assert differences(spec.vary({"source_vocab": 37}), spec.vary({"source_vocab": None})) == []
