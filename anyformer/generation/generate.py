"""`generate`: continue token ids, one token at a time."""

import functools
import weakref
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.engine.core import EngineCore
from anyformer.generation.engine.engine import make_requests
from anyformer.generation.engine.model_runner import ModelRunner, RecomputeRunner, TokenPool, give_back, runner_for
from anyformer.generation.engine.request import Sequence
from anyformer.generation.engine.scheduler import PADDING, Limits
from anyformer.generation.engine.speculative import make_proposer
from anyformer.generation.params.checks import shown, whole
from anyformer.generation.params.generation_request import GenerationRequest, check_request
from anyformer.generation.params.sampling_params import read_params
from anyformer.generation.params.validate import problems
from anyformer.model.model import Model
from anyformer.parts.static_cache import StaticPool

OWN = (
    "input_ids", "attention_mask", "global_mask", "tokenizer", "stream", "details", "use_cache", "rope_length", "draft",
    "lookup", "guesses", "compile",
)  # fmt: skip
"""What `generate` reads beside `SamplingParams`."""
MOST = 64
"""Tokens proposed at once at most."""
PASS = 8192
"""Tokens of prompts in one prefill pass of a device."""


def generate(
    model: Model,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    global_mask: Tensor | None = None,
    tokenizer: Tokenizer | None = None,
    stream: bool = False,
    details: bool = False,
    use_cache: bool = True,
    rope_length: int | None = None,
    draft: Model | None = None,
    lookup: bool = False,
    guesses: int = 8,
    compile: bool | str = False,
    **options: Any,
) -> Any:
    """Continue each row of `input_ids` (B,T): the prompt and its new tokens, as one tensor of ids.

    An encoder-decoder reads `input_ids` as its source and answers the decoder's ids, the start token first. With `n`
    answers for each row there are n times as many rows, those of one prompt beside each other. A finished row is filled
    with the pad id (without one: the first eos id, else 0).

    Args:
        model: A decoder or an encoder-decoder with an lm head. It runs in eval mode, and gets its mode back.
        input_ids: Token ids. Rows of different lengths are padded, on either side.
        attention_mask: (B,T), 1 is real; None: all are.
        global_mask: (B,T), 1 is a global token of the prompt (or source), where a pattern has `global_tokens`.
        tokenizer: The model's, needed where an option is about text: stop strings, choices, grammars, bad words.
        stream: Yield a (B,) tensor of ids after each step instead; between two steps the model has its own mode.
        details: Answer a `GenerationOutput` (each step of a stream: a `Step`), with log-probabilities and finish reasons.
        use_cache: False reads the whole row again in each step: slow, with the same tokens.
        rope_length: What length-dependent RoPE scalings read. None: the longest prompt and its new tokens.
        draft: A smaller model with the same vocabulary, whose proposals are read several at once. The tokens stay the same.
        lookup: Propose what followed when the last tokens occurred before in the row; it costs no model.
        guesses: So many tokens are proposed at once.
        compile: Single steps go through torch.compile, which takes its time before the first token; a
            text names its backend.
        options: How tokens are chosen and when a row ends, by the names of `SamplingParams`: max_new_tokens, min_new_tokens,
            stop, ignore_eos, temperature, do_sample, top_k, top_p, min_p, typical_p, seed, repetition_penalty, presence_penalty,
            frequency_penalty, logit_bias, no_repeat_ngram_size, bad_words, choices, guided, first, forced_bos_token_id,
            forced_eos_token_id, n, logprobs, processed_logprobs, prompt_logprobs, num_beams, length_penalty, num_beam_groups,
            diversity_penalty, early_stopping, penalty_alpha. Any other name is refused, with the right one. By default the likeliest token is taken.
    """
    inputs = check_request(
        model, input_ids, read_params(options, others=OWN), attention_mask=attention_mask, global_mask=global_mask,
        rope_length=rope_length, tokenizer=tokenizer, stream=stream, details=details, use_cache=use_cache, stacklevel=3,
    )  # fmt: skip
    decode = DecodeOptions(use_cache=use_cache, draft=draft, lookup=lookup, guesses=guesses, compile=compile)
    decode.check(model, inputs)
    batch = Batch(model, inputs, decode, details=details)
    if stream:
        return batch.stream()
    batch.run()
    return batch.output() if details else batch.ids()


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """What a user may say about how tokens are computed (see `generate`)."""

    use_cache: bool = True
    draft: Model | None = None
    lookup: bool = False
    guesses: int = 8
    compile: bool | str = False

    @property
    def speculative(self) -> bool:
        """Whether tokens are proposed."""
        return self.draft is not None or self.lookup

    def check(self, model: Model, inputs: GenerationRequest) -> None:
        """Refuse options that don't go together, or not with what is asked for."""
        wrong: list[str] = []
        whole("guesses", self.guesses, 1, wrong, most=MOST)
        if self.draft is not None and self.lookup:
            wrong.append("draft: tokens are proposed by a draft model or by look-up; leave one out")
        if self.speculative and not self.use_cache:
            wrong.append("use_cache: proposals are verified with a cache; leave use_cache=False out")
        if self.speculative and inputs.params.mode != "sample":
            wrong.append("draft and lookup: a search reads other rows at each step; leave them out")
        if self.compile and (self.speculative or not self.use_cache):
            wrong.append("compile: compiled steps read one token with the static cache; leave the other option out")
        if self.compile and inputs.params.mode != "sample":
            wrong.append("compile: a search reads other rows at each step; leave one of them out")
        if not isinstance(self.compile, bool | str):
            wrong.append(f"compile: expected True, False or the name of a backend, got {shown(self.compile)}")
        if self.draft is not None and not isinstance(self.draft, Model):
            wrong.append(f"draft: expected a model, got {type(self.draft).__name__}")
        if wrong:
            raise problems("generate", wrong)
        decoder: Any = model.decoder
        if self.use_cache and decoder.prefix and model.spec.topology == "decoder":
            shortest = min(len(row) for row in inputs.decoder_prompts())
            if shortest < decoder.prefix:
                # A cache is fed a prefix at once.
                raise InputError(
                    f"the first {decoder.prefix} tokens of this prefix-LM see each other both ways, but a prompt has "
                    f"{shortest}; give longer prompts, or recompute each step with use_cache=False"
                )

    def engine(self, model: Model, inputs: GenerationRequest, user: object) -> EngineCore:
        """An engine for all rows of a request, which `user` has to itself."""
        params, length, device = inputs.params, inputs.max_length, inputs.decoder_BT.device
        rows = len(inputs.decoder_BT) * max(params.options.n, params.search_width)
        if not self.use_cache:
            return EngineCore(RecomputeRunner(model, TokenPool(model, length)), Limits(lockstep=True))
        if self.speculative:
            # A state computes again what was right, so a pass has up to twice as many tokens.
            pool = model.new_pool(rows, length, chunk=2 * self.guesses + 2)
            proposer = make_proposer(model, rows, length, draft=self.draft, lookup=self.lookup, guesses=self.guesses)
            return EngineCore(ModelRunner(model, pool, cuda_graphs=False), Limits(), proposer=proposer)
        if device.type == "cuda" and not self.compile:
            limits = Limits(max_pass_tokens=PASS, prefill_chunk=PASS, max_padding=PADDING["cuda"])
            return EngineCore(runner_for(model, rows, length, user), limits)
        # A length that was not given is the cache's own, which padding must not change.
        own = inputs.rope_length is None and model.reads_length and model.spec.topology != "encoder-decoder"
        cache = model.new_cache(len(inputs.decoder_BT), length, rope_length=length if own else inputs.rope_length)
        step = compiled(model, self.compile) if self.compile else None
        runner = ModelRunner(model, StaticPool(cache), cuda_graphs=False, compiled=step)
        return EngineCore(runner, Limits(lockstep=True))


class Step(NamedTuple):
    """One step of a stream with details."""

    ids_B: Tensor
    logprobs_B: Tensor
    """Natural logarithms of the model's own probabilities, before temperature and samplers; 0 in finished rows."""
    finished_B: Tensor
    """Rows that met a stop, in this step or before."""
    top_ids_BK: Tensor | None = None
    """The likeliest tokens by the model itself, the likeliest first, if `logprobs` asks for some."""
    top_logprobs_BK: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Top:
    """The likeliest tokens at each place of each row, by the model itself, the likeliest first."""

    ids: Tensor
    """(B, places, k)."""
    logprobs: Tensor


@dataclass(frozen=True, kw_only=True)
class GenerationOutput:
    """What `generate` gives with details. Answers to one row of the prompt are beside each other."""

    ids: Tensor
    """What it gives without them."""
    logprobs: Tensor
    """(B, steps): the model's own log-probabilities of the new tokens, before any sampler; 0 in finished rows."""
    lengths: tuple[int, ...]
    """New tokens of each row, its stop token included."""
    reasons: tuple[str, ...]
    """Why each row ended: `length` or `stop`."""
    met: tuple[str | None, ...] = ()
    """The stop string or the choice with which each row ended, if it was one."""
    top: Top | None = None
    """Of the new tokens, if `logprobs` asks for some."""
    prompt_logprobs: Tensor | None = None
    """(rows of the prompt, T): of its own tokens, if asked for; 0 in padding and for the first, which nothing predicts."""
    prompt_top: Top | None = None
    """Of the prompt's tokens: at each place, what the tokens before it predict."""
    scores: Tensor | None = None
    """Of a search with beams: by what the answers were ranked."""


class Batch:
    """The rows of one call, served by an engine of their own until all have finished."""

    def __init__(self, model: Model, inputs: GenerationRequest, decode: DecodeOptions, *, details: bool) -> None:
        self.inputs, self.details = inputs, details
        self.device = inputs.decoder_BT.device
        self.exact = torch.promote_types(next(model.parameters()).dtype, torch.float32)
        self.engine: EngineCore = decode.engine(model, inputs, self)
        self.requests = make_requests(model, inputs)
        for each in self.requests:
            if details and inputs.params.mode == "sample":
                each.logprobs = inputs.params.options.logprobs or 0
            self.engine.add(each)

    @property
    def rows(self) -> list[Sequence]:
        """All answers, those of one prompt beside each other."""
        return [sequence for each in self.requests for sequence in each.sequences]

    def step(self) -> None:
        """One step of the engine. A row that fails ends the call."""
        for output in self.engine.step():
            if isinstance(output.error, InputError):
                raise InputError(f"row {output.request}: {output.error}") from output.error
            if output.error is not None:
                raise output.error

    def close(self) -> None:
        """Give back what the rows hold."""
        self.engine.close()
        give_back(self.engine.runner)

    def run(self) -> None:
        """All steps."""
        try:
            while not self.engine.idle:
                self.step()
        finally:
            self.close()

    def stream(self) -> Generator[Tensor | Step]:
        """The ids (B,) of each step; with details a `Step`. Closing this stream closes the engine too."""
        rows, pad, top = self.rows, self.inputs.pad_id, self.inputs.params.options.logprobs or 0
        try:
            for i in range(self.inputs.max_new_tokens):
                # A proposal may bring a row several tokens at once.
                while any([row.finish_reason is None and len(row.tokens) - row.prompt_length <= i for row in rows]):
                    self.step()
                # None: a row that had finished before.
                now = [row if len(row.tokens) - row.prompt_length > i else None for row in rows]
                if not any(now):
                    return
                ids = [pad if row is None else row.tokens[row.prompt_length + i] for row in now]
                ids_B = torch.tensor(ids, device=self.device)
                if not self.details:
                    yield ids_B
                    continue
                logprobs_B = self._tensor([0.0 if row is None else row.logprobs[i] for row in now])
                stopped = [row.finish_reason == "stop" and row.num_new_tokens <= i + 1 for row in rows]
                found = self._top([[() if row is None else row.top[i]] for row in now], 1, top)
                best = (None, None) if found is None else (found.ids[:, 0], found.logprobs[:, 0])
                yield Step(ids_B, logprobs_B, torch.tensor(stopped, device=self.device), *best)
        finally:
            self.close()

    def ids(self) -> Tensor:
        """Prompts and new tokens, filled up where a row has fewer."""
        rows = self.rows
        longest = max(len(row.new) for row in rows)
        new = [row.new + [self.inputs.pad_id] * (longest - len(row.new)) for row in rows]
        prompts_BT = self.inputs.decoder_BT.repeat_interleave(len(rows) // len(self.requests), 0)
        return torch.cat((prompts_BT, torch.tensor(new, device=self.device)), 1)

    def output(self) -> GenerationOutput:
        """All that is known of the rows."""
        rows, options = self.rows, self.inputs.params.options
        lengths = tuple(len(row.new) for row in rows)
        searches = [found for each in self.requests if each.search is not None for found in each.search.results]
        scores = [found.score for found in searches if found.score is not None]
        width = max(lengths)
        return GenerationOutput(
            ids=self.ids(),
            logprobs=self._tensor([row.logprobs + [0.0] * (width - len(row.logprobs)) for row in rows]),
            lengths=lengths,
            reasons=tuple(str(row.finish_reason) for row in rows),
            met=tuple(self._stop_reason(row) for row in rows),
            top=self._top([row.top for row in rows], width, options.logprobs),
            scores=self._tensor(scores) if scores else None,
            **self._prompt_logprobs(options.prompt_logprobs),
        )

    def _prompt_logprobs(self, count: int | None) -> dict[str, Any]:
        """Log-probabilities of the prompts' own tokens, where they stand."""
        if count is None:
            return {}
        width, mask_BT = self.inputs.prompt_BT.shape[1], self.inputs.mask_BT
        values: list[Any] = [[0.0] * width for _ in self.requests]
        tops: list[Any] = [[()] * width for _ in self.requests]
        for row, each in enumerate(self.requests):
            places = range(width) if mask_BT is None else mask_BT[row].nonzero().flatten().tolist()
            for place, found in zip(places, each.prompt_logprobs or [], strict=True):
                if found is not None:
                    values[row][place], tops[row][place] = found
        return {"prompt_logprobs": self._tensor(values), "prompt_top": self._top(tops, width, count)}

    def _top(self, rows: list[list[Any]], width: int, count: int | None) -> Top | None:
        """The likeliest tokens of each place; zeros where there are none."""
        if not count:
            return None
        blank = ((0, 0.0),) * count
        full = [[each or blank for each in row] + [blank] * (width - len(row)) for row in rows]
        ids = torch.tensor([[[i for i, _ in each] for each in row] for row in full], device=self.device)
        return Top(ids=ids, logprobs=self._tensor([[[p for _, p in each] for each in row] for row in full]))

    def _stop_reason(self, row: Sequence) -> str | None:
        """The stop string or choice with which a row ended."""
        params = self.inputs.params
        if row.stop_text is not None:
            return row.stop_text.met
        which = None if params.choices is None else params.choices.which(row.new)
        return None if which is None else list(params.options.choices or ())[which]

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=self.exact, device=self.device)


_compiled: weakref.WeakKeyDictionary[Model, dict[str, Any]] = weakref.WeakKeyDictionary()


def compiled(model: Model, backend: bool | str) -> Any:
    """The model's pass through torch.compile, made once for each model and backend."""
    name = backend if isinstance(backend, str) else "inductor"
    kept = _compiled.setdefault(model, {})
    if name not in kept:
        # A weak reference, or the model would live as long as its entry, and its entry as long as the model.
        kept[name] = torch.compile(functools.partial(_pass, weakref.ref(model)), backend=name)
    return kept[name]


def _pass(model: weakref.ref[Model], **given: Any) -> Any:
    alive = model()
    if alive is None:
        raise InputError("the model of this compiled pass is gone")
    return alive(**given)
