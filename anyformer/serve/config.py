"""Everything that `anyformer serve` can be told: where it listens, what it serves, and its limits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on what one client can take from the others. Times are in seconds."""

    body_bytes: int = 4 * MIB
    head_bytes: int = 16 * 1024
    head_fields: int = 100
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    keep_alive_seconds: float = 15.0
    connections: int = 1024
    connections_per_address: int = 64
    queue: int = 256
    """Requests that wait for a slot."""
    queue_pools: int = 4
    """The tokens of those that wait, in sizes of the KV pool."""
    request_seconds: float = 600.0
    """A request that takes longer is ended."""
    grace_seconds: float = 30.0
    """After SIGTERM, requests that run may take so long to end."""
    ping_seconds: float = 15.0
    """Silence on a stream after which a comment is sent."""
    stream_events: int = 256
    """Outputs that wait for a slow client; then its request is cancelled."""
    n: int = 8
    prompts: int = 64
    stop: int = 4
    stop_chars: int = 256
    logit_bias: int = 1024
    top_logprobs: int = 20
    messages: int = 1024
    tools: int = 64
    schema_bytes: int = 64 * 1024
    schema_seconds: float = 1.0
    look_tokens: int = 256
    look_queue: int = 4
    embeddings: int = 256


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """One server."""

    model: str
    """A run folder, a Hugging Face directory, org/name, or a .gguf file."""
    served_model_name: tuple[str, ...] = ()
    """Names under which it is asked for; none: that of its folder."""
    host: str = "127.0.0.1"
    port: int = 8000
    """0: any that is free."""
    keys: tuple[str, ...] = ()
    """API keys, of which each request needs one; none: everybody may ask."""
    cors_origins: tuple[str, ...] = ()
    """Origins of other pages that may ask, whole (https://example.org)."""
    connect_origins: tuple[str, ...] = ()
    """Origins of other servers that our page may ask, for Compare."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names by which clients may call this server (the Host header)."""
    device: str | None = None
    dtype: str | None = None
    quantize: str | None = None
    draft: str | None = None
    max_num_seqs: int | None = None
    """Sequences that run beside each other. None: 32, or fewer where memory is short."""
    max_model_len: int | None = None
    """Tokens of a sequence. None: what the model is made for."""
    num_blocks: int | None = None
    kv_cache_dtype: str = "model"
    max_num_batched_tokens: int = 2048
    batch_invariant: bool = False
    enable_prefix_caching: bool = True
    """Whether equal beginnings of prompts are read once, among requests with the same API key."""
    pooling: str | None = None
    """Of /v1/embeddings: mean, cls, last or none. None: what the model's folder says, else mean of an encoder, last of a decoder."""
    chat_template: str | None = None
    """A file with the chat template, instead of the model's own."""
    chat_template_kwargs: tuple[tuple[str, Any], ...] = ()
    """Variables of the chat template where a request says nothing, such as ("enable_thinking", False)."""
    defaults: tuple[tuple[str, Any], ...] = ()
    """Sampling parameters where a request says nothing, such as ("temperature", 0.8)."""
    any_model: bool = False
    """Answer whatever `model` a request names."""
    metrics: bool = True
    slots: bool = False
    """Whether GET /slots tells what runs."""
    front_end_process: bool = False
    """Whether HTTP has a process of its own, apart from the engine."""
    ignore_keys: tuple[str, ...] = ()
    threads: int | None = None
    """torch threads of the engine; None: torch's own default."""
    log: str = "text"
    """How requests are logged: text, json or none."""
    limits: Limits = Limits()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model: those that were given, else that of its folder, or org/name of the hub."""
        place = Path(self.model)
        own = place.resolve().name.removesuffix(".gguf") if place.exists() else self.model
        return self.served_model_name or (own,)
