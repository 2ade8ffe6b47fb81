"""From a user's options to resolved parameters: everything checked at once, and the logits processors that follow."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.guided.compiled import CompiledGrammar, compile_grammar
from anyformer.generation.params.checks import ids, number, shown, text, whole
from anyformer.generation.params.sampling_params import SamplingParams
from anyformer.generation.params.stop import read_stop
from anyformer.generation.samplers import logits_processors as processors
from anyformer.generation.samplers.logits_processors import Choices, LogitsProcessor
from anyformer.specs.model import ModelSpec

WORDS, CHOICES, TOP = 1024, 1024, 1000
"""The most bad words; texts to choose from; and answers, beams or top tokens."""
FAR = 10_000.0
"""The largest penalty, bias or power."""


@dataclass(frozen=True, kw_only=True)
class ResolvedParams:
    """SamplingParams that were checked, and what follows from them."""

    options: SamplingParams
    """As they were given."""
    mode: Literal["sample", "beam", "contrastive"]
    """One token after the other for each row; or a search."""
    max_new_tokens: int | None
    """None: what the context has room for."""
    least: int
    """New tokens before which no row stops."""
    logits_processors: tuple[LogitsProcessor, ...]
    """All of them, in order. Without a draw: those that can change which token is the likeliest."""
    temperature: float
    """0 takes the likeliest token of what the processors leave."""
    top_k: int
    top_p: float
    min_p: float
    """As `samplers.batched.sample` reads them: 0, 1 and 0 are off."""
    batchable: bool
    """Whether `samplers.batched.sample` does all that the processors do."""
    stop: tuple[int, ...]
    stop_texts: tuple[str, ...]
    choices: Choices | None
    guided: CompiledGrammar | None
    seed: int | tuple[int, ...] | None

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    @property
    def reads_history(self) -> bool:
        """Whether a processor looks at the tokens so far."""
        return any(processor.reads_history for processor in self.logits_processors)

    @property
    def search_width(self) -> int:
        """The beams or candidates that a search has at once; 1 without a search."""
        return {"beam": self.options.num_beams, "contrastive": self.options.top_k or 1}.get(self.mode, 1)


def problems(caller: str, wrong: list[str]) -> InputError:
    """One error for all that is wrong."""
    return InputError("\n  ".join([f"{caller}(...):", *wrong]) if len(wrong) > 1 else wrong[0])


def resolve_params(
    o: SamplingParams,
    spec: ModelSpec,
    bad: list[str],
    *,
    tokenizer: Tokenizer | None = None,
    rows: int = 1,
    details: bool = True,
    stream: bool = False,
    stacklevel: int = 2,
) -> ResolvedParams | None:
    """Some options resolved; None if something is wrong, which is then added to `bad`. What has no effect is warned of."""
    before, vocab = len(bad), spec.vocab
    new = None if o.max_new_tokens is None else whole("max_new_tokens", o.max_new_tokens, 1, bad)
    least = whole("min_new_tokens", o.min_new_tokens, 0, bad)
    if new is not None and least > new:
        bad.append(f"min_new_tokens: {least} is more than max_new_tokens, {new}")
    temperature, notes = _temperature(o, bad)
    top_k = 0 if o.top_k is None else whole("top_k", o.top_k, 1, bad)
    unit = {"least": 0.0, "most": 1.0, "wrong": bad}
    top_p = 1.0 if o.top_p is None else number("top_p", o.top_p, "above 0 and at most 1", above=True, **unit)
    min_p = 0.0 if o.min_p is None else number("min_p", o.min_p, "between 0 and 1", **unit)
    typical = 1.0 if o.typical_p is None else number("typical_p", o.typical_p, "above 0 and at most 1", above=True, **unit)  # fmt: skip
    if not isinstance(o.ignore_eos, bool):
        bad.append(f"ignore_eos: expected True or False, got {shown(o.ignore_eos)}")
    stop, texts = read_stop(o.stop, spec, tokenizer, bad, ignore_eos=o.ignore_eos is True)
    if least and len(stop) >= vocab:
        bad.append("min_new_tokens: every token is a stop token, so none is left to begin with")
    seed = _seed(o.seed, rows, bad)
    choices = None if o.choices is None else _choices(o, spec, tokenizer, stop, bad)
    guided = None if o.guided is None else _guided(o, vocab, tokenizer, bad)
    found = _penalties_and_bans(o, vocab, tokenizer, bad)
    if least and stop:
        found.append(processors.MinNewTokens(least, stop))
    if o.first is not None:
        odd: list[str] = []
        first = ids("first", o.first, vocab, odd)
        if odd or not first:
            bad.append(f"first: {shown(o.first)} is not a list of ids below vocab = {vocab}")
        found.append(processors.First(first))
    found += _forced(o, new, vocab, bad)
    found += [choices] if choices is not None else []
    mode = _mode(o, texts, drawn=temperature > 0, stream=stream, bad=bad)
    _check_answers(o, mode, temperature, vocab, details=details, stream=stream, bad=bad)
    if temperature == 0 and o.temperature is None:
        given = {"top_p": top_p < 1, "min_p": min_p > 0, "typical_p": typical < 1}
        given["top_k"] = bool(top_k) and mode != "contrastive"
        notes += [f"{name} has no effect without a draw; give a temperature" for name, on in given.items() if on]
    if len(bad) > before:
        return None
    for note in notes:
        warnings.warn(note, stacklevel=stacklevel)
    batchable = not found and not (temperature > 0 and typical < 1) and guided is None
    if temperature > 0:
        found += [processors.Temperature(temperature)] if temperature != 1 else []
        found += [processors.TopK(top_k)] if top_k else []
        found += [processors.TopP(top_p)] if top_p < 1 else []
        found += [processors.MinP(min_p)] if min_p else []
        found += [processors.Typical(typical)] if typical < 1 else []
    return ResolvedParams(
        options=o, mode=mode, max_new_tokens=new, least=least, logits_processors=tuple(found), temperature=temperature,
        top_k=top_k, top_p=top_p, min_p=min_p, batchable=batchable, stop=stop, stop_texts=texts, choices=choices,
        guided=guided, seed=seed,
    )  # fmt: skip


def _temperature(o: SamplingParams, bad: list[str]) -> tuple[float, list[str]]:
    """The temperature, where 0 takes the likeliest token; and what will have no effect."""
    given, drawn = o.temperature, o.do_sample
    if drawn is not None and not isinstance(drawn, bool):
        bad.append(f"do_sample: expected True, False or None, got {shown(drawn)}")
        return 0.0, []
    if given is None:
        return (1.0 if drawn else 0.0), []
    rule = "a finite number of at least 0 (0 takes the likeliest token)"
    before = len(bad)
    found = number("temperature", given, rule, bad, least=0.0, most=1.7e308)
    if len(bad) > before:
        return 0.0, []
    if drawn and found == 0:
        bad.append("temperature: 0 takes the likeliest token, but do_sample asks for a draw; leave one of them out")
    if drawn is False:
        return 0.0, [f"temperature={given} has no effect, as do_sample is False"] if found not in (0, 1) else []
    return found, []


def _penalties_and_bans(
    o: SamplingParams, vocab: int, tokenizer: Tokenizer | None, bad: list[str]
) -> list[LogitsProcessor]:
    """Penalties, biases and bans, in the order of transformers' own."""
    found: list[LogitsProcessor] = []
    if o.logit_bias is not None and not isinstance(o.logit_bias, Mapping):
        bad.append(f"logit_bias: expected a dict of id and number, got {shown(o.logit_bias)}")
    elif o.logit_bias:
        known = ids("logit_bias", o.logit_bias.keys(), vocab, bad)
        values = [_near(f"logit_bias: {shown(i)}", value, bad) for i, value in o.logit_bias.items()]
        found.append(processors.LogitBias(tuple(sorted(zip(known, values, strict=False)))))
    if o.repetition_penalty is not None:
        penalty = number("repetition_penalty", o.repetition_penalty, f"above 0 and at most {FAR:,.0f}", bad, least=0.0, most=FAR, above=True)  # fmt: skip
        found += [processors.RepetitionPenalty(penalty)] if penalty != 1 else []
    for name, value, kind in (
        ("presence_penalty", o.presence_penalty, processors.PresencePenalty),
        ("frequency_penalty", o.frequency_penalty, processors.FrequencyPenalty),
    ):
        if value is not None:
            penalty = _near(name, value, bad)
            found += [kind(penalty)] if penalty else []
    if o.no_repeat_ngram_size is not None:
        size = whole("no_repeat_ngram_size", o.no_repeat_ngram_size, 0, bad)
        found += [processors.NoRepeatNgram(size)] if size else []
    if o.bad_words is not None:
        words = _bad_words(o.bad_words, vocab, tokenizer, bad)
        found += [processors.BadWords(words)] if words else []
    return found


def _forced(o: SamplingParams, new: int | None, vocab: int, bad: list[str]) -> list[LogitsProcessor]:
    """The tokens that a row must begin and end with."""
    found: list[LogitsProcessor] = []
    last = None if new is None else new - 1
    for name, token, step in (
        ("forced_bos_token_id", o.forced_bos_token_id, 0),
        ("forced_eos_token_id", o.forced_eos_token_id, last),
    ):
        if token is None:
            continue
        if ids(name, [token], vocab, bad) and step is not None:
            found.append(processors.Forced(token, step))
        elif step is None:
            bad.append(f"{name}: is the last of max_new_tokens; give their number")
    return found


def _near(name: str, value: Any, bad: list[str]) -> float:
    """A penalty, bias or power that may be negative."""
    return number(name, value, f"a number between -{FAR:,.0f} and {FAR:,.0f}", bad, least=-FAR, most=FAR)


def _bad_words(given: Any, vocab: int, tokenizer: Tokenizer | None, bad: list[str]) -> tuple[tuple[int, ...], ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        bad.append(f"bad_words: expected a list of texts or of lists of ids, got {shown(given)}")
        return ()
    found: list[tuple[int, ...]] = []
    words = list(given)
    if len(words) > WORDS:
        bad.append(f"bad_words: {len(words)} words; the most is {WORDS}")
    for word in words[:WORDS]:
        if isinstance(word, str):
            known = text("bad_words", word, tokenizer, bad)
            if known is not None and tokenizer is not None:
                # A word is spelled with other tokens inside of a text than at its beginning.
                spelled = [known] if known[0] == " " else [known, f" {known}"]
                found += [tuple(tokenizer.encode(each)) for each in spelled]
            continue
        one = ids("bad_words", [word] if isinstance(word, int) else word, vocab, bad)
        if not one:
            bad.append(f"bad_words: {shown(word)} has no ids; leave it out")
        found.append(one)
    return tuple(dict.fromkeys(each for each in found if each))


def _seed(seed: Any, rows: int, bad: list[str]) -> int | tuple[int, ...] | None:
    if seed is None:
        return None
    if isinstance(seed, str) or not isinstance(seed, Iterable):
        return whole("seed", seed, 0, bad)
    found = tuple(whole("seed", each, 0, bad) for each in seed)
    if len(found) != rows:
        bad.append(f"seed: {len(found)} seeds for {rows} rows; give one for each, or one number")
    return found


def _mode(
    o: SamplingParams, texts: tuple[str, ...], *, drawn: bool, stream: bool, bad: list[str]
) -> Literal["sample", "beam", "contrastive"]:
    """How tokens are searched for."""
    beams = whole("num_beams", o.num_beams, 1, bad, most=TOP)
    groups = whole("num_beam_groups", o.num_beam_groups, 1, bad, most=TOP)
    power = _near("length_penalty", o.length_penalty, bad)
    apart = number("diversity_penalty", o.diversity_penalty, f"between 0 and {FAR:,.0f}", bad, least=0.0, most=FAR)
    if not isinstance(o.early_stopping, bool) and o.early_stopping != "never":
        bad.append(f"early_stopping: expected True, False or 'never', got {shown(o.early_stopping)}")
    if o.penalty_alpha is not None:
        number("penalty_alpha", o.penalty_alpha, "between 0 and 1", bad, least=0.0, most=1.0)
        if o.top_k is None:
            bad.append("penalty_alpha: contrastive search weighs the top_k likeliest tokens; give top_k, such as 4")
        if beams > 1:
            bad.append("penalty_alpha: contrastive search has no beams; leave num_beams out")
    mode = "beam" if beams > 1 else "sample" if o.penalty_alpha is None else "contrastive"
    if mode != "beam":
        given = {"length_penalty": power != 1, "num_beam_groups": groups != 1, "diversity_penalty": apart != 0, "early_stopping": o.early_stopping is not False}  # fmt: skip
        bad += [f"{name}: only beams read it; set num_beams, or leave it out" for name, on in given.items() if on]
    elif groups > 1 and beams % groups:
        bad.append(f"num_beam_groups: {groups} groups do not share {beams} beams evenly")
    elif (groups > 1) != (apart > 0):
        bad.append("diversity_penalty: keeps groups of beams apart; give it together with num_beam_groups above 1")
    name = {"beam": "num_beams", "contrastive": "penalty_alpha"}.get(mode)
    logprobs = o.logprobs is not None or o.prompt_logprobs is not None
    clashes = {
        "a search draws nothing; leave temperature and do_sample out": drawn,
        "a search ends at ids, not at texts; give ids as stop": bool(texts),
        "a search gives no logprobs of other tokens; leave logprobs and prompt_logprobs out": logprobs,
        "a search knows its tokens only at the end, so there is nothing to stream; leave one out": stream,
    }
    bad += [f"{name}: {why}" for why, on in clashes.items() if on and name is not None]
    return mode


def _check_answers(
    o: SamplingParams, mode: str, temperature: float, vocab: int, *, details: bool, stream: bool, bad: list[str]
) -> None:
    """What is answered, and how often."""
    n = whole("n", o.n, 1, bad, most=TOP)
    if mode == "beam" and isinstance(o.num_beams, int) and n > o.num_beams:
        bad.append(f"n: {n} answers, but num_beams = {o.num_beams} hypotheses")
    elif n > 1 and mode == "contrastive":
        bad.append(f"n: contrastive search gives one answer, and {n} were asked for")
    elif n > 1 and mode == "sample" and temperature == 0:
        bad.append(f"n: {n} answers of the likeliest tokens are the same; give a temperature, or num_beams")
    for name, value in (("logprobs", o.logprobs), ("prompt_logprobs", o.prompt_logprobs)):
        if value is not None:
            whole(name, value, 0, bad, most=min(TOP, vocab))
            if not details:
                bad.append(f"{name}: is answered with details=True only")
    if not isinstance(o.processed_logprobs, bool):
        bad.append(f"processed_logprobs: expected True or False, got {shown(o.processed_logprobs)}")
    elif o.processed_logprobs and o.logprobs is None:
        bad.append("processed_logprobs: says which log-probabilities are meant; give logprobs too")
    if stream and o.prompt_logprobs is not None:
        bad.append("prompt_logprobs: the steps of a stream are new tokens; ask for it without stream")


def _choices(
    o: SamplingParams, spec: ModelSpec, tokenizer: Tokenizer | None, stop: tuple[int, ...], bad: list[str]
) -> Choices | None:
    """The sampler that leaves nothing but these texts; None if something is wrong, which is added to `bad`."""
    before = len(bad)
    if isinstance(o.choices, str) or not isinstance(o.choices, Iterable):
        bad.append(f"choices: expected a list of texts, got {shown(o.choices)}")
        return None
    texts = list(o.choices)
    if not 1 <= len(texts) <= CHOICES:
        bad.append(f"choices: {len(texts)} texts; give 1 to {CHOICES:,}")
        return None
    known = [text("choices", one, tokenizer, bad) for one in texts]
    clash = {
        "stop": isinstance(o.stop, str) or (isinstance(o.stop, Iterable) and any(isinstance(s, str) for s in o.stop)),
        "min_new_tokens": o.min_new_tokens, "bad_words": o.bad_words, "no_repeat_ngram_size": o.no_repeat_ngram_size,
        "first": o.first, "num_beams": o.num_beams != 1, "penalty_alpha": o.penalty_alpha,
        "forced_bos_token_id": o.forced_bos_token_id is not None,
        "forced_eos_token_id": o.forced_eos_token_id is not None,
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


def _guided(o: SamplingParams, vocab: int, tokenizer: Tokenizer | None, bad: list[str]) -> CompiledGrammar | None:
    """The grammar of the answer; None if something is wrong, which is added to `bad`."""
    before = len(bad)
    clash = {
        "min_new_tokens": o.min_new_tokens, "choices": o.choices is not None, "first": o.first is not None,
        "num_beams": o.num_beams != 1, "penalty_alpha": o.penalty_alpha is not None,
        "forced_bos_token_id": o.forced_bos_token_id is not None,
        "forced_eos_token_id": o.forced_eos_token_id is not None,
    }  # fmt: skip
    bad += [
        f"guided: {name} does not go together with a grammar; leave one of them out" for name, on in clash.items() if on
    ]
    if isinstance(o.guided, CompiledGrammar):
        if not o.guided.suits(tokenizer, vocab):
            bad.append(
                f"guided: {o.guided} was compiled for another vocabulary; compile it for this model and tokenizer"
            )
        return o.guided if len(bad) == before else None
    if tokenizer is None:
        bad.append("guided: is about text; give the model's tokenizer as tokenizer=")
        return None
    try:
        found = compile_grammar(o.guided, tokenizer, vocab)
    except InputError as error:
        bad.append(str(error))
        return None
    return found if len(bad) == before else None
