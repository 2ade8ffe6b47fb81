"""The look-up table alone: torch's, with our own first weights and an error that says which id is wrong."""

from __future__ import annotations

import torch

from anyformer.nn.part import count
from anyformer.parts.embedding import Embedding as Table


class Embedding(Table):
    """Rows of a table (num_embeddings, embedding_dim) by their numbers; they start as N(0, 1), cut at 3 sigma."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        rows = count("Embedding", "num_embeddings", num_embeddings)
        super().__init__(rows, count("Embedding", "embedding_dim", embedding_dim), limit="num_embeddings")
        self.to(device=device, dtype=dtype)
        self.reset_parameters()
