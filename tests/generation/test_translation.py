"""Translation by models of many languages, and answers as a folder's generation_config.json asks for them."""

import json
import warnings
from typing import Any

import pytest
import torch
import transformers

import anyformer as af
from anyformer.data.tokenizer import tokenizer as read_tokenizer
from anyformer.errors import InputError
from anyformer.families.statemap import StateMap
from anyformer.generation.pipelines.search_options import search_options
from tests.families.oracle import lifted, randomise

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "house", "now", "then", "what", "who"]
PIECES = [f"\u2581{word}" for word in WORDS]
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = ["the cat sat on a mat", "who ran  to the house", "dog"]
SIZES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 48, "scale_embedding": False,
}  # fmt: skip


def unigram() -> list[tuple[str, float]]:
    return [(name, 0.0) for name in SPECIALS] + [(piece, -1.0 - 0.1 * i) for i, piece in enumerate(["\u2581", *PIECES])]


def mbart50(**more: Any) -> Any:
    codes = transformers.models.mbart50.tokenization_mbart50.FAIRSEQ_LANGUAGE_CODES
    vocab = unigram() + [(code, 0.0) for code in codes] + [("<mask>", 0.0)]
    return transformers.MBart50Tokenizer(vocab=vocab, **more)


def mbart(**more: Any) -> Any:
    codes = transformers.models.mbart.tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
    vocab = unigram() + [(code, 0.0) for code in codes] + [("<mask>", 0.0)]
    return transformers.MBartTokenizer(vocab=vocab, **more)


def nllb(**more: Any) -> Any:
    letters = sorted({letter for piece in PIECES for letter in piece})
    merges: list[tuple[str, str]] = []
    vocab = dict.fromkeys([*SPECIALS, *letters])
    for piece in PIECES:
        for n in range(1, len(piece)):
            merges.append((piece[:n], piece[n]))
            vocab[piece[: n + 1]] = None
    return transformers.NllbTokenizer(
        vocab={name: i for i, name in enumerate(vocab)}, merges=list(dict.fromkeys(merges)), **more
    )


KINDS: dict[str, tuple[Any, str, tuple[str, str], dict[str, Any]]] = {
    "mbart50": (mbart50, "MBart", ("de_DE", "fr_XX"), {}),
    "mbart": (mbart, "MBart", ("de_DE", "ro_RO"), {}),
    "nllb": (nllb, "M2M100", ("deu_Latn", "fra_Latn"), {}),
    "nllb-older": (nllb, "M2M100", ("deu_Latn", "fra_Latn"), {"legacy_behaviour": True}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Makes a public model, its tokenizer, and their folder."""
    kept: dict[str, Any] = {}

    def make(kind: str) -> Any:
        if kind not in kept:
            words, public, _, more = KINDS[kind]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own = words(**more)
            cls = getattr(transformers, f"{public}ForConditionalGeneration")
            config = cls.config_class(vocab_size=len(own), decoder_start_token_id=2, **SIZES)
            with lifted():
                model = cls(config).double().eval()
            randomise(model, StateMap(rules=(), ignored=("final_logits_bias",)), 3)
            with torch.no_grad():
                # Loud layers, so that an answer follows what is read; and words that are likelier than languages.
                for name, parameter in model.named_parameters():
                    parameter.mul_(4.0 if "layers" in name and parameter.dim() > 1 else 1.0)
                model.lm_head.weight[own.all_special_ids] *= 0.4
            place = tmp_path_factory.mktemp(kind)
            model.generation_config.max_length = 14
            model.generation_config.forced_eos_token_id = 2
            model.save_pretrained(place)
            own.save_pretrained(place)
            kept[kind] = model, transformers.AutoTokenizer.from_pretrained(place), place
        return kept[kind]

    return make


def asked(folder, **changes: Any) -> None:
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def public(model: Any, words: Any, text: str, pair: tuple[str, str], **options: Any) -> str:
    given = words._build_translation_inputs(text, return_tensors="pt", src_lang=pair[0], tgt_lang=pair[1])
    with lifted(), torch.no_grad():
        (ids,) = model.generate(**given, **options)
    return words.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", list(KINDS))
def test_tokens_of_a_text_and_its_language_equal_those_of_the_public_class(made, kind):
    _, words, folder = made(kind)
    ours = read_tokenizer(folder)
    source, target = KINDS[kind][2]
    for text in [*TEXTS, "unknown cat\nmat"]:
        assert ours.text_ids(text) == words(text).input_ids
        words.src_lang = target
        assert ours.speaking(target).text_ids(text) == words(text).input_ids
        words.src_lang = source
        assert ours.speaking(source).text_ids(text) == words(text).input_ids
        words.src_lang = "en_XX" if "mbart" in kind else "eng_Latn"
    assert ours.language(target) == words.convert_tokens_to_ids(target)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 4, "early_stopping": True, "length_penalty": 0.6, "no_repeat_ngram_size": 2, "min_length": 5},
    ],
    ids=["greedy", "beams", "more"],
)
@pytest.mark.parametrize("kind", list(KINDS))
def test_translations_equal_the_public_class_asked_as_its_files_say(made, kind, changes):
    model, words, folder = made(kind)
    pair = KINDS[kind][2]
    before = (folder / "generation_config.json").read_text()
    try:
        asked(folder, **changes)
        mine = af.pipeline("translation", folder, dtype=torch.float64, src_lang=pair[0], tgt_lang=pair[1])
        want = [{"translation_text": public(model, words, text, pair, **changes)} for text in TEXTS]
        assert mine(TEXTS) == want
        back = [{"translation_text": public(model, words, text, pair[::-1], **changes)} for text in TEXTS]
        assert mine(TEXTS, src_lang=pair[1], tgt_lang=pair[0]) == back
        assert back != want or "min_length" not in changes, "languages must make a difference"
        few = changes | {"max_new_tokens": 6, "max_length": None}
        short = [{"translation_text": public(model, words, text, pair, **few)} for text in TEXTS]
        assert mine(TEXTS, max_new_tokens=6) == short
    finally:
        (folder / "generation_config.json").write_text(before)


def test_language_that_a_model_does_not_have_or_is_not_told_is_refused(made):
    _, _, folder = made("nllb")
    with pytest.raises(InputError, match=r"language 'de' is none of this tokenizer.*such as ace_Arab"):
        af.pipeline("translation", folder, src_lang="de", tgt_lang="fra_Latn")
    mine = af.pipeline("translation", folder, tgt_lang="fra_Latn")
    with pytest.raises(InputError, match="one of many languages; say which: src_lang"):
        mine("the cat")
    assert len(mine("the cat", src_lang="deu_Latn")) == 1
    with pytest.raises(InputError, match="src_lang, tgt_lang: are for translation, not for summarization"):
        af.pipeline("summarization", folder, src_lang="deu_Latn")


def test_forced_tokens_stand_first_and_last(made):
    model, _, folder = made("nllb")
    ours, ids = af.load(folder, dtype=torch.float64), torch.tensor([[5, 7, 9, 2], [6, 8, 2, 1]])
    mask = (ids != 1).long()
    for beams in (1, 3):
        more = {"forced_bos_token_id": 11, "forced_eos_token_id": 2, "max_new_tokens": 5, "num_beams": beams}
        with lifted(), torch.no_grad():
            want = model.generate(ids, attention_mask=mask, **more)
        found = af.generate(ours, ids, attention_mask=mask, stop=[2], **more)
        assert found[:, 1].tolist() == [11, 11]
        assert [row[row != 1].tolist() for row in found] == [row[row != 1].tolist() for row in want]
    with pytest.raises(InputError, match="forced_bos_token_id"):
        af.generate(ours, ids, forced_bos_token_id=10**6, max_new_tokens=3)
    with pytest.raises(InputError, match="forced_eos_token_id: is the last of max_new_tokens; give their number"):
        af.generate(ours, ids, forced_eos_token_id=2)


def test_what_files_say_gives_way_to_what_is_asked_for():
    said = {"num_beams": 4, "length_penalty": 2.0, "max_length": 142, "min_length": 56, "forced_eos_token_id": 2}
    assert search_options(said, 9, {}) == {
        "num_beams": 4, "length_penalty": 2.0, "max_new_tokens": 141, "min_new_tokens": 55, "forced_eos_token_id": 2,
    }  # fmt: skip
    rest = {"max_new_tokens": 141, "min_new_tokens": 55, "forced_eos_token_id": 2}
    assert search_options(said, 9, {"num_beams": 1}) == rest
    assert search_options(said, 9, {"temperature": 0.5}) == rest
    assert search_options(said, 9, {}, stream=True) == rest
    assert search_options(said, 2, {"max_new_tokens": 5}) == {
        "num_beams": 4,
        "length_penalty": 2.0,
        "min_new_tokens": 5,
    }
    assert search_options({"forced_eos_token_id": 2, "do_sample": True}, 9, {}) == {}
    with pytest.warns(UserWarning, match="encoder_no_repeat_ngram_size: the model's files ask for it"):
        search_options({"encoder_no_repeat_ngram_size": 3}, 9, {})
