"""What a user may ask of one request, under the familiar names."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from anyformer.model.arguments import unknown_argument

ALIASES = {"num_return_sequences": "n"}
"""Other names that mean the same."""

RENAMED = {
    **dict.fromkeys(("max_length", "max_tokens"), "max_new_tokens"),
    **dict.fromkeys(("min_length", "min_tokens"), "min_new_tokens"),
    **dict.fromkeys(("eos_token_id", "stop_token_ids", "stop_strings", "stopping_criteria"), "stop"),
    **dict.fromkeys(("return_dict_in_generate", "output_scores"), "details"),
    **dict.fromkeys(("inputs", "prompt"), "input_ids"),
    "bad_words_ids": "bad_words",
    "sequence_bias": "logit_bias",
    "best_of": "n",
    "top_logprobs": "logprobs",
    "streamer": "stream",
    "generator": "seed",
    "mask": "attention_mask",
    "global_attention_mask": "global_mask",
}
"""Names that people bring from elsewhere, where they mean something a little different."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when it ends. Nothing is checked here: `validate` does that."""

    max_new_tokens: int | None = None
    """None: as many as the model's context has room for."""
    min_new_tokens: int = 0
    """No row stops before it."""
    do_sample: bool | None = None
    """None: draw if there is a temperature."""
    temperature: float | None = None
    """None or 0 takes the likeliest token (None with do_sample: 1); else logits are divided by it."""
    top_k: int | None = None
    """Draw from the k likeliest tokens. For `penalty_alpha`: how many tokens are weighed against each other."""
    top_p: float | None = None
    """Draw from the fewest tokens that together have this probability."""
    min_p: float | None = None
    """Draw from tokens that are at least this many times as likely as the likeliest."""
    typical_p: float | None = None
    """Draw from the tokens with this probability together whose surprise is nearest to the expected one."""
    repetition_penalty: float | None = None
    """Logits of tokens that occurred, in the prompt too, are divided by it (multiplied, if negative)."""
    presence_penalty: float | None = None
    """Subtracted from the logit of each token that was generated."""
    frequency_penalty: float | None = None
    """Subtracted as many times as the token was generated."""
    logit_bias: Mapping[int, float] | None = None
    """What is added to the logits of some ids."""
    no_repeat_ngram_size: int | None = None
    """No run of so many tokens occurs twice, the prompt included; 0: off."""
    bad_words: Sequence[Any] | None = None
    """Sequences of ids, or texts, that are never completed. A text is barred at the beginning of a word and after it."""
    stop: Any = None
    """Ids and texts that end a row. Ids replace the spec's eos ids, texts come on top; None: the eos ids; (): never."""
    seed: int | Sequence[int] | None = None
    """The same seed draws the same tokens; a list has one for each row, which then draws alike in any batch. None: a
    seed from torch's own generator.
    """
    ignore_eos: bool = False
    """The spec's eos ids end no row; ids and texts that are given as `stop` still do."""
    choices: Sequence[str] | None = None
    """Texts of which the answer is exactly one."""
    guided: Any = None
    """What the answer must look like: {"json_object": True}, {"json_schema": a dict or JSON}, {"regex": ...} or {"grammar": in
    Lark or GBNF}; or such a grammar after `compile_grammar`. It ends where nothing can follow; stop ids end it where it may.
    """
    first: Sequence[int] | None = None
    """Ids among which the first new token is chosen. None: all."""
    forced_bos_token_id: int | None = None
    """The first new token, whatever the model says; such as that of the language of a translation."""
    forced_eos_token_id: int | None = None
    """The last new token of a row that has reached max_new_tokens."""
    num_beams: int = 1
    """Search with so many hypotheses beside each other."""
    length_penalty: float = 1.0
    """The sum of log-probabilities of a hypothesis is divided by its length to this power."""
    num_beam_groups: int = 1
    """Groups of beams that are kept apart by `diversity_penalty`."""
    diversity_penalty: float = 0.0
    """Subtracted from a token for each earlier group that chose it in this step."""
    early_stopping: bool | str = False
    """True: end with the first num_beams hypotheses; "never": only when no better one can come; False: in between."""
    penalty_alpha: float | None = None
    """Contrastive search: how much a token's likeness to what was said counts against it."""
    n: int = 1
    """Answers for each row, from one reading of its prompt; `num_return_sequences` means the same."""
    logprobs: int | None = None
    """With details: so many of the likeliest tokens of each step, and their log-probabilities."""
    processed_logprobs: bool = False
    """Whether `logprobs` are those of the distribution that tokens are drawn from, after penalties, temperature and filters,
    and not the model's own; what can't be drawn has -inf.
    """
    prompt_logprobs: int | None = None
    """With details: log-probabilities of the prompt's tokens, and so many of the likeliest at each."""


NAMES = tuple(field.name for field in fields(SamplingParams))


def read_params(given: Mapping[str, Any], *, others: Iterable[str] = (), caller: str = "generate") -> SamplingParams:
    """SamplingParams by name. `others` are names that the caller itself reads, to be suggested where one is misspelled."""
    known = {*NAMES, *ALIASES}
    unknown, twice = set(given) - known, [pair for pair in ALIASES.items() if {*pair} <= given.keys()]
    if unknown or twice:
        renamed = {name: f"called {own!r}" for name, own in RENAMED.items()}
        clashes = [f"{name!r} and {alias!r} mean the same; give one" for alias, name in twice]
        raise unknown_argument(f"{caller}(...)", unknown, {*known, *others}, renamed, *clashes)
    return SamplingParams(**{ALIASES.get(name, name): value for name, value in given.items()})
