"""What the handlers share: the engine, the texts of its model, settings and metrics."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyformer.registry import own_version
from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.client import EngineClient, EngineFacts
from anyformer.serve.errors import ApiError
from anyformer.serve.fields.sampling import Bounds
from anyformer.serve.http.app import ServerState
from anyformer.serve.metrics import Metrics
from anyformer.serve.text.texts import Texts


@dataclass(kw_only=True)
class Context:
    """One server."""

    config: ServeConfig
    client: EngineClient
    texts: Texts
    state: ServerState
    metrics: Metrics
    names: tuple[str, ...]
    """Under which the model is asked for; the first is its own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters where a request says nothing."""
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = f"b-anyformer-{own_version()}"

    @property
    def facts(self) -> EngineFacts:
        """What is known of the model."""
        return self.client.facts

    @property
    def room(self) -> int:
        """Tokens that a sequence may have."""
        return self.client.facts.max_model_len

    @property
    def bounds(self) -> Bounds:
        """What the bounds of fields depend on."""
        facts = self.facts
        return Bounds(
            limits=self.config.limits, vocab=facts.vocab, input_vocab=facts.input_vocab, room=facts.max_model_len,
            slots=max(1, facts.max_num_seqs),
        )  # fmt: skip

    def check_model(self, name: str | None) -> str:
        """The model that a request names; an absent name means the one that is there."""
        if name is None or self.config.any_model:
            return name or self.names[0]
        if name not in self.names:
            shown = name if len(name) <= 100 else name[:97] + "..."
            known = ", ".join(self.names)
            raise ApiError(
                404,
                f"model: {shown!r} is not served here; this server has {known}",
                param="model",
                code="model_not_found",
            )
        return name

    def check_generates(self) -> None:
        """Refuse a model that can't continue a text."""
        if not self.facts.generates:
            raise ApiError(
                501, f"this model is an {self.facts.topology}, which continues no text; it serves /v1/embeddings",
                code="not_supported",
            )  # fmt: skip


def new_id(kind: str) -> str:
    """A name that no other answer has, such as chatcmpl-8f3a..."""
    return f"{kind}-{secrets.token_hex(12)}"
