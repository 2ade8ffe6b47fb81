"""Choices: texts of which an answer is exactly one, as sequences of ids."""

from collections.abc import Iterable

from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.params.checks import shown, text
from anyformer.generation.params.sampling_params import SamplingParams
from anyformer.generation.samplers.logits_processors import Choices
from anyformer.specs.model import ModelSpec

ANSWERS = 1024
"""The most of them."""


def read_choices(
    o: SamplingParams, spec: ModelSpec, tokenizer: Tokenizer | None, stop: tuple[int, ...], bad: list[str]
) -> Choices | None:
    """The sampler that leaves nothing but these texts; None if something is wrong, which is added to `bad`."""
    before = len(bad)
    if isinstance(o.choices, str) or not isinstance(o.choices, Iterable):
        bad.append(f"choices: expected a list of texts, got {shown(o.choices)}")
        return None
    texts = list(o.choices)
    if not 1 <= len(texts) <= ANSWERS:
        bad.append(f"choices: {len(texts)} texts; give 1 to {ANSWERS:,}")
        return None
    known = [text("choices", one, tokenizer, bad) for one in texts]
    clash = {
        "stop": isinstance(o.stop, str) or (isinstance(o.stop, Iterable) and any(isinstance(s, str) for s in o.stop)),
        "min_new_tokens": o.min_new_tokens, "bad_words": o.bad_words, "no_repeat_ngram_size": o.no_repeat_ngram_size,
        "first": o.first, "num_beams": o.num_beams != 1, "penalty_alpha": o.penalty_alpha,
    }  # fmt: skip
    bad += [f"choices: {name} could bar or cut what must be answered; leave one of them out" for name, on in clash.items() if on]  # fmt: skip
    if tokenizer is None or len(bad) > before:
        return None
    answers = tuple(tuple(tokenizer.encode(one)) for one in known if one is not None)
    by_ids: dict[tuple[int, ...], str] = {}
    for one, answer in zip(texts, answers, strict=True):
        if not answer:
            bad.append(f"choices: {shown(one)} has no tokens")
        elif answer in by_ids:
            bad.append(f"choices: {shown(by_ids[answer])} and {shown(one)} have the same tokens; give one of them")
        elif max(answer) >= spec.vocab:
            bad.append(f"choices: {shown(one)} has a token beyond vocab = {spec.vocab}; is it this model's tokenizer?")
        elif set(answer) & set(stop):
            bad.append(f"choices: {shown(one)} has a stop token in it; give other ids as stop")
        by_ids.setdefault(answer, one)
    found = Choices(answers, stop)
    longer = next(((a, b) for a in answers for b in answers if len(b) > len(a) and b[: len(a)] == a), None)
    if longer is not None and not stop:
        a, b = longer
        bad.append(f"choices: {shown(by_ids[a])} begins {shown(by_ids[b])}, and without a stop token nothing tells that the shorter one ended; give stop")  # fmt: skip
    if o.max_new_tokens is not None and isinstance(o.max_new_tokens, int) and o.max_new_tokens < found.steps:
        bad.append(f"choices: the longest needs {found.steps} tokens, more than max_new_tokens, {o.max_new_tokens}")
    return found if len(bad) == before else None
