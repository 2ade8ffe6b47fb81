"""The engine: many requests through one model by continuous batching."""

import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Rows
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.engine.core import EngineCore
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.request import Request, RequestOutput, Sequence
from anyformer.generation.engine.scheduler import LITTLE, PADDING, Limits
from anyformer.generation.engine.search import BeamSearch, ContrastiveSearch
from anyformer.generation.engine.speculative import make_proposer
from anyformer.generation.guided.guide import Guide
from anyformer.generation.params.generation_request import GenerationRequest, check_model, check_request, context_length
from anyformer.generation.params.sampling_params import SamplingParams, read_params
from anyformer.generation.params.stop import StopText
from anyformer.generation.samplers.batched import keys
from anyformer.generation.text.detokenizer import detokenizer
from anyformer.model.model import Model

OWN = ("input_ids", "global_mask", "rope_length", "id", "cache_salt")
"""What `add_request` reads beside sampling parameters."""
SEARCHES = {"beam": BeamSearch, "contrastive": ContrastiveSearch}


class Engine(EngineCore):
    """Serves requests of one model.

    Args:
        model: A decoder or an encoder-decoder with an lm head. It is in eval mode during steps. Its weights may change
            while no request is under way.
        max_num_seqs: Sequences that run beside each other.
        max_model_len: Tokens that a sequence may have, its prompt included. None: what the model is made for.
        num_blocks: Blocks that all sequences share, for layers that keep every token. None: enough for all of them at
            full length.
        block_size: Tokens of a block. None: 16; on CUDA 64, as block tables are sent there in many steps.
        max_num_batched_tokens: Tokens that a step reads: one of each running sequence, and as many of prompts as are left.
        prefill_chunk: Tokens of one prompt that are read at once.
        watermark: Blocks for each running sequence that stay free for it when another one is admitted. 0: more run beside
            each other, and where blocks run out, the youngest are preempted and read their tokens again later.
        kv_cache_dtype: How keys and values are kept: "model", in the model's dtype, or "int8".
        tokenizer: The model's, needed where an option is about text: stop strings, choices, grammars, bad words.
        enable_prefix_caching: Whether equal beginnings of prompts are read once.
        batch_invariant: Every pass has a shape that depends on nobody else, so that a request gets the same tokens in any
            company in 16 bits too, where a product may round otherwise when more rows are in it. Steps read all slots,
            prompts are read one by one, and nothing is shared. With too few blocks, what is read again may round otherwise.
        draft: A smaller model with the same vocabulary, which proposes tokens. The tokens stay the same.
        lookup: Propose what followed when the last tokens occurred before in the sequence; it costs no model.
        guesses: So many tokens are proposed at once.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_num_seqs: int = 32,
        max_model_len: int | None = None,
        num_blocks: int | None = None,
        block_size: int | None = None,
        max_num_batched_tokens: int = 2048,
        prefill_chunk: int = 512,
        watermark: int = 1,
        kv_cache_dtype: str = "model",
        tokenizer: Tokenizer | None = None,
        enable_prefix_caching: bool = True,
        batch_invariant: bool = False,
        draft: Model | None = None,
        lookup: bool = False,
        guesses: int = 8,
    ) -> None:
        check_model(model.spec)
        least = {"max_num_batched_tokens": (max_num_batched_tokens, 1), "prefill_chunk": (prefill_chunk, 1)}
        least |= {"watermark": (watermark, 0), "guesses": (guesses, 1)}
        wrong = [f"{name}: at least {low}, got {n}" for name, (n, low) in least.items() if n < low]
        if draft is not None and lookup:
            wrong.append("draft: tokens are proposed by a draft model or by look-up; leave one out")
        if (draft is not None or lookup) and batch_invariant:
            wrong.append("batch_invariant: passes over proposals have many shapes; leave draft and lookup out")
        if wrong:
            raise InputError("; ".join(wrong))
        self.tokenizer = tokenizer
        speculative, device = draft is not None or lookup, next(model.parameters()).device
        size = (64 if device.type == "cuda" else 16) if block_size is None else block_size
        length = context_length(model)[0] if max_model_len is None else max_model_len
        pool = model.new_pool(
            max_num_seqs, length, block_size=size, num_blocks=num_blocks, kv_cache_dtype=kv_cache_dtype,
            chunk=2 * guesses + 2 if speculative else 1,
        )  # fmt: skip
        limits = Limits(
            max_num_batched_tokens=max_num_batched_tokens, prefill_chunk=prefill_chunk, watermark=watermark,
            max_padding=PADDING.get(device.type, LITTLE), batch_invariant=batch_invariant,
            # What a decoder keeps of its own tokens depends on the source too; what is shared can't be rewound.
            enable_prefix_caching=enable_prefix_caching and not batch_invariant and not speculative
            and model.spec.topology == "decoder",
        )  # fmt: skip
        super().__init__(
            ModelRunner(model, pool, batch_invariant=batch_invariant), limits,
            proposer=make_proposer(model, max_num_seqs, length, draft=draft, lookup=lookup, guesses=guesses),
        )  # fmt: skip
        self._weights = _weights(model)
        self._arrivals = 0

    def add_request(
        self,
        input_ids: Tensor | Rows[int],
        params: SamplingParams | None = None,
        *,
        global_mask: Tensor | Rows[int] | None = None,
        rope_length: int | None = None,
        id: Hashable = None,
        cache_salt: str | None = None,
        **named: Any,
    ) -> Request:
        """Take a request: one prompt (of an encoder-decoder: one source), and the sampling parameters of `generate`, as
        an object or by name. What is wrong with it is said here, and then nothing of it is kept.

        `id` is what its outputs are called by; None: a number that no other request has. Equal beginnings of prompts are
        shared only among requests with an equal `cache_salt`, so that nobody can tell by the time it takes what others,
        who have another one, have asked.
        """
        if params is not None and named:
            raise TypeError(f"add_request(...): params are given, so leave out {', '.join(sorted(named))}")
        options = read_params(named, others=OWN, caller="add_request") if params is None else params
        free = (number for number in itertools.count(self._arrivals) if number not in self.requests)
        name = next(free) if id is None else id
        if name in self.requests:
            raise InputError(f"id: {name!r} is that of a request that has not ended; give another one")
        inputs = check_request(
            self.model, one_row("input_ids", input_ids), options, rope_length=rope_length, tokenizer=self.tokenizer,
            global_mask=None if global_mask is None else one_row("global_mask", global_mask), stacklevel=2,
        )  # fmt: skip
        (made,) = make_requests(self.model, self._fitted(inputs), first=self._arrivals)
        made.id, made.logprobs, made.cache_salt = name, options.logprobs, cache_salt
        if not self.requests and _weights(self.model) != self._weights and self.scheduler.blocks is not None:
            # The model has learned or was loaded since the last request: what was kept of prompts is forgotten.
            self.scheduler.blocks.reset_prefix_cache()
            self.runner = ModelRunner(self.model, self.pool, batch_invariant=self.scheduler.limits.batch_invariant)
            self._weights, self._modules = _weights(self.model), list(self.model.modules())
        self._arrivals += 1
        self.add(made)
        return made

    def _fitted(self, inputs: GenerationRequest) -> GenerationRequest:
        """Limit new tokens to what this engine has room for, unless more were asked for; refuse what can never fit."""
        params, new, prompt = inputs.params, inputs.max_new_tokens, inputs.decoder_BT.shape[1]
        prefix = 0 if self.scheduler.blocks is None else self.scheduler.blocks.prefix
        # The last new token is never computed, but for the candidates of contrastive search.
        last = params.mode != "contrastive"
        if params.max_new_tokens is None and params.choices is None:
            new = max(1, min(new, self.pool.length - prompt + last))
        seq2seq = self.model.spec.topology == "encoder-decoder"
        if prompt < prefix and not (seq2seq and inputs.max_new_tokens == 1):
            raise InputError(
                f"the first {prefix} tokens of this prefix-LM see each other both ways, but the prompt has {prompt}; give "
                + ("it to" if seq2seq else "a longer one, or recompute with")
                + " generate and use_cache=False"
            )
        why = self.scheduler.too_much(prompt + new - last, params.search_width)
        if why is not None:
            raise InputError(f"a prompt of {prompt} and {new} new tokens: {why}")
        return replace(inputs, max_new_tokens=new, max_length=prompt + new)

    def __iter__(self) -> Iterator[RequestOutput]:
        """Outputs, until there is nothing more to do."""
        while not self.idle:
            yield from self.step()

    def run(self, requests: Iterable[Mapping[str, Any]]) -> list[Request]:
        """Serve some requests to their end, each given by the arguments of `add_request`; in the same order.

        If one of them is refused, none is served.
        """
        added: list[Request] = []
        try:
            for each in requests:
                added.append(self.add_request(**each))
            others: list[RequestOutput] = []
            mine = {each.id for each in added}
            while not all(each.done for each in added):
                others += [output for output in self.step() if output.request not in mine]
            self.outputs = others + self.outputs
        except BaseException:
            for each in added:
                self.abort(each)
            raise
        return added


def make_requests(model: Model, inputs: GenerationRequest, *, first: int = 0) -> list[Request]:
    """The requests of all rows of what was asked for, called by their numbers."""
    params, seq2seq = inputs.params, model.spec.topology == "encoder-decoder"
    prompts, starts = inputs.unpadded(inputs.prompt_BT), inputs.decoder_prompts()
    marks = None if inputs.global_BT is None else inputs.unpadded(inputs.global_BT)
    n, search = params.options.n, SEARCHES.get(params.mode)
    draws = [0] * len(starts) * n
    if not params.greedy:
        draws = keys(params.seed, len(starts), samples=n, device=torch.device("cpu")).tolist()
    rope_length = inputs.max_length if inputs.rope_length is None and model.reads_length else inputs.rope_length
    found: list[Request] = []
    for row, tokens in enumerate(starts):
        made = Request(
            id=first + row, arrival=first + row, params=params, prompt=tuple(prompts[row].tolist()),
            max_new_tokens=inputs.max_new_tokens, rope_length=rope_length,
            source_rope_length=inputs.rope_length if seq2seq else None, source_S=prompts[row] if seq2seq else None,
            global_T=None if marks is None else marks[row], prompt_logprobs=None if params.options.prompt_logprobs is None else [],
            search=None if search is None else search(params, inputs.max_new_tokens),
        )  # fmt: skip
        for i in range(n if search is None else 1):
            stop_text = None
            if params.stop_texts and inputs.tokenizer is not None:
                text = detokenizer(inputs.tokenizer, [] if seq2seq else tokens)
                stop_text = StopText(text, params.stop_texts, least=params.least)
            guide = None if params.guided is None else Guide(params.guided, params.stop)
            made.sequences.append(Sequence(made, i, draws[row * n + i], list(tokens), len(tokens), stop_text, guide))
        made.sequences[0].forks = made.sequences[1:]
        found.append(made)
    return found


def one_row(name: str, given: Any) -> Any:
    """Ids of one row as (1,T)."""
    if isinstance(given, str | bytes) or not isinstance(given, Tensor | Rows):
        raise InputError(f"{name}: expected token ids, a list of them or a tensor, got {type(given).__name__}")
    try:
        found = given if isinstance(given, Tensor) else torch.tensor(list(given))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name}: expected whole numbers: {error}") from error
    row = found[None] if found.ndim == 1 else found
    if row.ndim != 2 or row.shape[0] != 1:
        raise InputError(f"{name}: a request is one row, (tokens) or (1, tokens), got {tuple(found.shape)}")
    return row


def _weights(model: Model) -> list[tuple[int, int]]:
    """Where each parameter is, and how often it was changed in place."""
    return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters()]
