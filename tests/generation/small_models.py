"""Tiny models and tokenizers in two libraries with the same weights: ours and transformers'."""

import functools
from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

import anyformer as af
from anyformer.data.tokenizer import train_bpe

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = (
    [*SPECIALS, "the", "cat", "dog", "sat", "on", "mat", "paris", "is", "in", "france", "a", "big", ".", ",", "##s", "##ly", "##ing", "micro", "##soft"]
)  # fmt: skip
TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 4


@functools.cache
def word_pieces() -> str:
    """A tokenizer such as BERT's, as a tokenizer.json."""
    inner = Inner(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer()
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    inner.add_special_tokens(SPECIALS)
    return inner.to_str()


def bert_words() -> transformers.PreTrainedTokenizerFast:
    names = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Inner.from_str(word_pieces()), **{f"{name}_token": SPECIALS[i] for name, i in names.items()},
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def shaken(model):
    """Weights at which nothing is near a tie, the same in every run; gains of norms are around 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.copy_(middle + torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def bert_config(**more) -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, type_vocab_size=2, pad_token_id=0, **more,
    )  # fmt: skip


def masked_lm() -> transformers.BertForMaskedLM:
    return shaken(transformers.BertForMaskedLM(bert_config()).double()).eval()


def sequence_classifier(labels: int, **more):
    config = bert_config(**{"id2label": dict(enumerate(names(labels)))} | more)
    theirs = shaken(transformers.BertForSequenceClassification(config).double()).eval()
    return theirs, af.from_hf(theirs)


def token_classifier(labels: list[str]):
    theirs = transformers.BertForTokenClassification(bert_config(id2label=dict(enumerate(labels))))
    theirs = shaken(theirs.double()).eval()
    return theirs, af.from_hf(theirs)


def answerer():
    theirs = shaken(transformers.BertForQuestionAnswering(bert_config()).double()).eval()
    return theirs, af.from_hf(theirs)


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


def byte_words(*specials: str) -> transformers.PreTrainedTokenizerFast:
    """A byte-level tokenizer with the end of a text as its token 0."""
    inner = tokenizers.Tokenizer.from_str(train_bpe([TEXT], 290).to_json())
    inner.add_special_tokens(list(specials))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<|endoftext|>", pad_token="<|endoftext|>", padding_side="left"
    )


def llama(words, **more) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(**{
        "vocab_size": len(words), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 64, "bos_token_id": None,
        "eos_token_id": 0, "pad_token_id": 0,
    } | more)  # fmt: skip
    return shaken(transformers.LlamaForCausalLM(config).double()).eval()


def t5(words) -> transformers.T5ForConditionalGeneration:
    config = transformers.T5Config(
        vocab_size=len(words), d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, pad_token_id=0, eos_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return shaken(transformers.T5ForConditionalGeneration(config).double()).eval()


def folder_of(theirs, words, place: Path) -> Path:
    theirs.save_pretrained(place)
    words.save_pretrained(place)
    return place
