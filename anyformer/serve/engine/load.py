"""From settings to a model in memory, and an engine as large as that memory allows."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.families.io import find_folder, load, spec_of
from anyformer.generation.engine import Engine
from anyformer.generation.params.generation_request import check_model, context_length
from anyformer.generation.pipelines.sentence import SentenceModules, read_sentence, transformer_folder
from anyformer.generation.pipelines.source import Source, open_source
from anyformer.kernels.memory import free
from anyformer.model.model import Model
from anyformer.parts.kv_pool import KVBlockPool
from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.messages import EngineFacts
from anyformer.specs import number_format

DTYPES = ("float64", "float32", "bfloat16", "float16")
POOLINGS = ("mean", "cls", "last", "none")
SEQUENCES = 32
"""Sequences that run beside each other, unless told otherwise."""
SHARE = {"cuda": 0.9}
"""How much of the free memory keys and values may take. On a GPU the rest is room for a pass."""
SHARE_OF_HOST = 0.5
"""The same elsewhere, where other programs want memory too."""
GUESSES = 8
"""Tokens that a draft model proposes at once."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a worker serves."""

    source: Source
    engine: Engine | None
    """None: the model continues no text."""
    sentence: SentenceModules | None
    facts: EngineFacts
    remake: Callable[[], Engine]
    """Another engine of the same size, where one was lost."""

    @property
    def caches(self) -> bool:
        """Whether equal beginnings of prompts are read once."""
        if self.engine is None or self.engine.scheduler.blocks is None:
            return False
        return self.engine.scheduler.limits.enable_prefix_caching and self.engine.scheduler.blocks.shares_prefixes


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """How large a pool is."""

    max_num_seqs: int
    num_blocks: int | None
    block_size: int
    bytes_per_token: int


def load_engine(config: ServeConfig, source: Source | None = None) -> Loaded:
    """Read the model, unless it is given, and make its engine."""
    check_sizes(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = device_of(config.device)
    dtype = None if config.dtype is None else getattr(torch, config.dtype)
    if source is None:
        folder = transformer_folder(find_folder(config.model))
        check_reads_text(config, folder)
        source = open_source(
            folder, None, device=device, dtype=dtype, labels=None, quantize=config.quantize,
            ignore_keys=config.ignore_keys,
        )  # fmt: skip
    model = source.model.eval()
    sentence = read_sentence(source.folder, next(model.parameters()))
    length, hard = model_length(model, config)
    if sentence is not None and sentence.most is not None:
        length = min(length, sentence.most)
    draft = None if config.draft is None else load(config.draft, source.device, dtype).eval()
    if draft is not None:
        check_draft(draft, model)
    plan = plan_pool(model, config, length, draft=draft) if generates(model) else None

    def make() -> Engine:
        if plan is None:
            raise InputError("this model continues no text")
        return make_engine(config, source, plan, length, draft)

    engine = None if plan is None else make()
    facts = facts_of(config, source, engine, plan, sentence, length, hard)
    return Loaded(source=source, engine=engine, sentence=sentence, facts=facts, remake=make)


def make_engine(config: ServeConfig, source: Source, plan: PoolPlan, length: int, draft: Model | None) -> Engine:
    """An engine with a pool of this size."""
    return Engine(
        source.model, max_num_seqs=plan.max_num_seqs, max_model_len=length, num_blocks=plan.num_blocks, block_size=plan.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens, kv_cache_dtype=config.kv_cache_dtype, tokenizer=source.tokenizer,
        enable_prefix_caching=config.enable_prefix_caching, batch_invariant=config.batch_invariant, draft=draft, guesses=GUESSES,
    )  # fmt: skip


def check_sizes(config: ServeConfig) -> None:
    """Refuse numbers and names that can't be."""
    least = {
        "--max-num-seqs": config.max_num_seqs, "--max-model-len": config.max_model_len, "--num-blocks": config.num_blocks,
        "--threads": config.threads, "--max-num-batched-tokens": config.max_num_batched_tokens,
    }  # fmt: skip
    wrong = [f"{name}: at least 1, got {value}" for name, value in least.items() if value is not None and value < 1]
    if config.dtype is not None and config.dtype not in DTYPES:
        wrong.append(f"--dtype: {config.dtype!r} is unknown (known: {', '.join(DTYPES)})")
    if config.batch_invariant and config.draft is not None:
        wrong.append("--batch-invariant, --draft: passes over proposals have many shapes; leave one of them out")
    if config.pooling is not None and config.pooling not in POOLINGS:
        wrong.append(f"--pooling: {config.pooling!r} is unknown (known: {', '.join(POOLINGS)})")
    if wrong:
        raise InputError("; ".join(wrong))


def check_draft(draft: Model, model: Model) -> None:
    """Refuse a draft model that can't propose tokens for this one."""
    if draft.spec.topology != "decoder":
        raise InputError(f"--draft: tokens are proposed by a decoder, and this is an {draft.spec.topology}")
    if draft.spec.vocab != model.spec.vocab:
        raise InputError(
            f"--draft: has {draft.spec.vocab:,} tokens and the model {model.spec.vocab:,}; give one with the same vocabulary"
        )


def device_of(given: str | None) -> torch.device:
    """The device that was given, if it is there; by default cuda where there is one."""
    if given is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(given)
    except RuntimeError as error:
        raise InputError(f"--device: {given!r} is none; give cpu, cuda or cuda:1") from error
    if found.type not in ("cpu", "cuda"):
        raise InputError(f"--device: {given!r} is neither cpu nor cuda (or cuda:1 ...)")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device: {given!r} is not there; torch finds {torch.cuda.device_count()} CUDA devices here")
    return found


def check_reads_text(config: ServeConfig, folder: Path) -> None:
    """Refuse a model of something else before its weights are read."""
    reads = spec_of(folder, config.ignore_keys).embed.reads
    if reads != "input_ids":
        raise InputError(
            f"{config.model}: this model reads {reads}, and a server is given texts; give a model of texts"
        )


def generates(model: Model) -> bool:
    """Whether a model can continue a text."""
    try:
        check_model(model.spec)
    except InputError:
        return False
    return True


def model_length(model: Model, config: ServeConfig) -> tuple[int, bool]:
    """Tokens of a sequence, and whether the model has no more positions than it was made for."""
    size, hard = context_length(model, model.encoder if model.spec.topology == "encoder" else model.decoder)
    asked = config.max_model_len
    if asked is not None and hard and asked > size:
        raise InputError(f"--max-model-len: {asked:,} tokens, and this model has {size:,} positions; give at most that")
    return size if asked is None else asked, hard


def plan_pool(
    model: Model, config: ServeConfig, length: int, *, draft: Model | None = None, room: int | None = None
) -> PoolPlan:
    """The largest pool up to what was asked for that `room` bytes hold (None: a share of what is free on the device)."""
    device = next(model.parameters()).device
    if room is None:
        room = int(free(device) * SHARE.get(device.type, SHARE_OF_HOST))
    block = 64 if device.type == "cuda" else 16
    chunk = 1 if draft is None else 2 * GUESSES + 2
    fixed, per_block, blocks = _pool_costs(model, length, block, config.kv_cache_dtype, chunk)
    if draft is not None:
        own, each, count = _pool_costs(draft, length, block, "model", chunk)
        fixed += own + each * count
    per_token = per_block // block
    one = fixed + per_block * blocks
    if one > room:
        raise InputError(
            _too_large(device, length, one, room, fits=(room - fixed) // per_block * block if per_block else 0)
        )
    wanted, least = config.max_num_seqs or SEQUENCES, per_block * blocks
    sequences = wanted if fixed == 0 else min(wanted, max(1, (room - least) // fixed))
    if config.max_num_seqs is not None and sequences < wanted:
        raise InputError(
            f"--max-num-seqs: {wanted} sequences take {number_format.data(fixed)} each beside their blocks, and "
            f"{number_format.data(room)} can be used on {device}; give at most {sequences}, or leave it out"
        )
    if config.num_blocks is not None:
        if config.num_blocks < blocks:
            holds = config.num_blocks * block
            raise InputError(
                f"--num-blocks: {config.num_blocks:,} of {block} tokens each hold {holds:,}, and one sequence may have {length:,}; "
                f"give at least {blocks:,}, or --max-model-len {holds} or less"
            )
        needed = sequences * fixed + config.num_blocks * per_block
        if needed > room and config.num_blocks > blocks:
            most = (room - sequences * fixed) // max(1, per_block)
            raise InputError(
                f"--num-blocks: {config.num_blocks:,} blocks take {number_format.data(needed)}, and {number_format.data(room)} "
                f"can be used on {device}; give at most {most:,}"
            )
        num_blocks = config.num_blocks
    else:
        fitting = blocks * sequences if per_block == 0 else (room - sequences * fixed) // per_block
        num_blocks = None if fitting >= blocks * sequences else max(1, fitting)
    return PoolPlan(max_num_seqs=sequences, num_blocks=num_blocks, block_size=block, bytes_per_token=per_token)


def _too_large(device: torch.device, length: int, one: int, room: int, *, fits: int) -> str:
    advice = f"give --max-model-len {fits:,} or less" if fits > 0 else "take a smaller model, or another --dtype"
    return (
        f"--max-model-len: one sequence of {length:,} tokens takes {number_format.data(one)} of keys and values, and "
        f"{number_format.data(room)} can be used on {device}; {advice}"
    )


def _pool_costs(model: Model, length: int, block_size: int, kv_cache_dtype: str, chunk: int) -> tuple[int, int, int]:
    """Of one sequence: bytes that its slot takes whatever it holds, bytes of a block that grows with it, and how many of
    those it has at full length. Nothing is allocated.
    """
    stack, like = model.decoder, next(model.parameters())
    # A pool keeps books of each block; so this one has a single one that grows, however long a sequence may be.
    pool = KVBlockPool(
        model.cache_specs, max_num_seqs=1, num_blocks=1, length=length, block_size=block_size, chunk=chunk, kv_cache_dtype=kv_cache_dtype,
        device=torch.device("meta"), dtype=like.dtype, prefix=stack.prefix, global_marks=stack.reads_marks,
        needs_rope_length=stack.needs_rope_length,
    )  # fmt: skip
    per_block = blocks = 0
    grows = [i for i, keep in enumerate(pool.policies) if keep.recent is None]
    for i in grows:
        per_block += sum(tensor.nbytes // (pool.totals[i] + 1) for tensor in pool._tensors(i))
        blocks = max(blocks, math.ceil(pool.policies[i].room(length) / block_size))
    fixed = pool.nbytes - sum(
        tensor.nbytes // (pool.totals[i] + 1) * pool.totals[i] for i in grows for tensor in pool._tensors(i)
    )
    fixed += length if pool.is_global is not None else 0
    if model.spec.topology == "encoder-decoder":
        fixed += model.spec.count().kv_bytes_by_part(length, str(like.dtype).removeprefix("torch.")).get("cross-attention", 0)  # fmt: skip
    return fixed, per_block, blocks


def facts_of(
    config: ServeConfig,
    source: Source,
    engine: Engine | None,
    plan: PoolPlan | None,
    sentence: SentenceModules | None,
    length: int,
    hard: bool,
) -> EngineFacts:
    """What clients may know."""
    model, spec = source.model, source.model.spec
    like = next(model.parameters())
    usual = "model" if sentence is not None else "last" if spec.topology == "decoder" else "mean"
    tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    return EngineFacts(
        name=config.names[0], folder=str(source.folder or config.model), topology=spec.topology,
        vocab=spec.vocab, input_vocab=spec.input_vocab, context=spec.context, max_model_len=length,
        max_num_seqs=0 if plan is None else plan.max_num_seqs, num_blocks=0 if engine is None else num_blocks(engine),
        block_size=0 if engine is None or engine.scheduler.blocks is None else engine.scheduler.blocks.block_size,
        generates=engine is not None, embeds=spec.embed.reads == "input_ids", params=spec.count().params,
        size=sum(tensors.values()), dtype=str(like.dtype).removeprefix("torch."), device=str(like.device),
        kv_bytes_per_token=0 if plan is None else plan.bytes_per_token, spec=spec.to_data(), eos=list(source.stop),
        width=spec.width, hard_limit=hard, pooling=config.pooling or usual,
        embedding_width=spec.width if config.pooling or sentence is None else vector_width(sentence, like.new_zeros(1, spec.width)),
        sentence=None if sentence is None else {
            "lower": sentence.lower, "prompt": sentence.prompts.get(sentence.default_prompt or "", ""),
            "max_tokens": sentence.most,
        },
    )  # fmt: skip


@torch.inference_mode()
def vector_width(sentence: SentenceModules, states_TD: Tensor) -> int:
    """Numbers of a vector that such a folder makes, which may be others than those of a state."""
    return sentence.vector(states_TD, 0).shape[-1]


def num_blocks(engine: Engine) -> int:
    """Blocks of the layers that keep every token; without such layers, of all others."""
    pool = engine.scheduler.blocks
    if pool is None or not pool.totals:
        return 0
    grows = [total for keep, total in zip(pool.policies, pool.totals, strict=True) if keep.recent is None]
    return max(grows or pool.totals)
