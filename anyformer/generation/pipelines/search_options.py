"""How a published encoder-decoder is to be asked: what its generation_config.json says, as our options."""

import warnings
from collections.abc import Mapping
from typing import Any

PLAIN = ("repetition_penalty", "no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id")
BEAMS = ("num_beams", "length_penalty", "early_stopping", "num_beam_groups", "diversity_penalty")
UNSERVED: dict[str, tuple[Any, ...]] = {
    "encoder_no_repeat_ngram_size": (0, None), "encoder_repetition_penalty": (1.0, 1, None), "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []), "exponential_decay_length_penalty": (None,), "sequence_bias": (None,),
}  # fmt: skip
"""Keys that we don't have -> values with which they change nothing."""
ALONE = ("do_sample", "temperature", "penalty_alpha", "choices", "logprobs", "prompt_logprobs")
"""Options with which there are no beams."""


def search_options(
    said: Mapping[str, Any], vocab: int, given: Mapping[str, Any], *, stream: bool = False
) -> dict[str, Any]:
    """What a generation_config.json says and nobody has said otherwise. Only how to search: it never makes us draw.

    Lengths count the token with which the decoder begins.
    """
    odd = sorted(name for name, usual in UNSERVED.items() if said.get(name, usual[0]) not in usual)
    if odd:
        warnings.warn(f"{', '.join(odd)}: the model's files ask for it, and it is not served here", stacklevel=4)
    found = {name: said[name] for name in (*PLAIN, *BEAMS) if said.get(name) is not None}
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        ids = found.get(name)
        first = ids[0] if isinstance(ids, list) and ids else ids
        if type(first) is not int or not 0 <= first < vocab:
            found.pop(name, None)
        else:
            found[name] = first
    if said.get("bad_words_ids"):
        found["bad_words"] = said["bad_words_ids"]
    beams = given.get("num_beams", found.get("num_beams", 1))
    texts = given.get("stop") if isinstance(given.get("stop"), str | list | tuple) else ()
    worded = isinstance(texts, str) or any(isinstance(each, str) for each in texts or ())
    if beams == 1 or stream or worded or any(given.get(name) not in (None, False) for name in ALONE):
        found = {name: value for name, value in found.items() if name not in BEAMS}
    if given.get("choices") is not None:
        return {}
    new, least = _length(said, "max", given), _length(said, "min", given)
    if new is not None:
        found["max_new_tokens"] = new
    most = given.get("max_new_tokens", new)
    if least:
        found["min_new_tokens"] = least if type(most) is not int else min(least, most)
    if most is None:
        # It is the last of so many.
        found.pop("forced_eos_token_id", None)
    return found


def _length(said: Mapping[str, Any], which: str, given: Mapping[str, Any]) -> int | None:
    whole, new = said.get(f"{which}_length"), said.get(f"{which}_new_tokens")
    found = new if type(new) is int else whole - 1 if type(whole) is int else None
    return found if found is not None and found > 0 and f"{which}_new_tokens" not in given else None
