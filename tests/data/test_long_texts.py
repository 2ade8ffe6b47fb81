"""Long texts go to the tokenizers library in another way than short ones, with the same ids and the same text."""

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from anyformer.data.tokenizer import LONG, Tokenizer, train_bpe

TEXT = "Zoë paid 5 € for the naïve café, twice <|endoftext|> and more. "


def with_template() -> Tokenizer:
    inner = tokenizers.Tokenizer(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "paid": 3, "the": 4, "more": 5}, "[UNK]"))  # fmt: skip
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return Tokenizer(inner, published=True)


@pytest.mark.parametrize("words", [train_bpe([TEXT * 20], 300), with_template()], ids=["bpe", "template"])
@pytest.mark.parametrize("specials", [False, True])
def test_long_text_has_the_ids_and_the_text_of_its_kind(words, specials):
    text = TEXT * (1 + LONG // len(TEXT))
    assert len(text) > LONG
    assert words.encode(text, specials=specials) == words.literal.encode(text, add_special_tokens=specials).ids
    ids = words.text_ids(text, specials=specials)
    assert ids == words.inner.encode(text, add_special_tokens=specials).ids
    many = ids * (1 + LONG // len(ids))
    assert words.decode(many, specials=specials) == words.inner.decode(many, skip_special_tokens=not specials)
