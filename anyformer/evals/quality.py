"""What a changed model, a quantised one for instance, loses: its predictions of a text against those of the original."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch.nn import functional as F

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import DataError, InputError
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model
from anyformer.train.perplexity import (
    MANY,
    TOKENS,
    Reader,
    batches,
    cut,
    perplexity,
    read_documents,
    unpredicted,
    window_sizes,
)
from anyformer.verify.differences import Progress, Report


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Two models on the same tokens. `a + b` is both texts together."""

    tokens: int
    """Tokens that were predicted."""
    bytes: int
    """Bytes of UTF-8 that they stand for; 0 if only ids were given."""
    before: float
    """Nats of the original model over those tokens."""
    after: float
    """Nats of the changed one."""
    divergence: float
    """Sum over those tokens of KL(original || changed), in nats."""
    agreed: int
    """How often both find the same token the most likely."""

    @property
    def mean_kl(self) -> float:
        """Mean KL divergence of the next-token distributions, in nats."""
        return self.divergence / self.tokens

    @property
    def agreement(self) -> float:
        """Share of tokens for which both find the same one the most likely."""
        return self.agreed / self.tokens

    @property
    def perplexity(self) -> tuple[float, float]:
        return perplexity(self.before, self.tokens), perplexity(self.after, self.tokens)

    @property
    def bits_per_byte(self) -> tuple[float, float] | None:
        """Before and after; None if only ids were given."""
        scale = math.log(2) * self.bytes
        return (self.before / scale, self.after / scale) if self.bytes else None

    def line(self) -> str:
        old, new = self.perplexity
        bits = "bits per byte {:.4f} -> {:.4f}, ".format(*self.bits_per_byte) if self.bits_per_byte else ""
        return (
            f"perplexity {old:,.3f} -> {new:,.3f} ({100 * (new / old - 1):+.2f}%), {bits}"
            f"KL {self.mean_kl:.5f} nats, same first choice {100 * self.agreement:.1f}%"
        )

    def data(self) -> dict[str, Any]:
        names, bits = ("before", "after"), self.bits_per_byte
        return {
            "tokens": self.tokens, "perplexity": dict(zip(names, self.perplexity, strict=True)), "mean_kl": self.mean_kl,
            "bits_per_byte": bits and dict(zip(names, bits, strict=True)), "agreement": self.agreement,
        }  # fmt: skip

    def __add__(self, other: "Quality") -> "Quality":
        return Quality(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def compare(model: Model, changed: Model, tokenizer: Tokenizer, texts: str | Sequence[str], **options: Any) -> Quality:
    """Both models on a text or documents, read as `anyformer.train.perplexity.score` reads them; `options` as below."""
    read = read_documents(model, tokenizer, texts)
    return compare_ids(model, changed, read.ids, bytes=read.bytes, **options)


@torch.inference_mode()
def compare_ids(
    model: Model,
    changed: Model,
    documents: Sequence[Sequence[int]],
    *,
    bytes: int = 0,
    stride: int | None = None,
    context: int | None = None,
    report: Report | None = None,
) -> Quality:
    """The same for documents of token ids."""
    if model.spec.vocab != changed.spec.vocab:
        raise InputError(f"the two models have vocabularies of {model.spec.vocab} and {changed.spec.vocab}")
    (size, step), _ = window_sizes(model, context, stride), window_sizes(changed, context, stride)
    skipped, other = unpredicted(model), unpredicted(changed)
    if other != skipped:
        raise InputError(f"the two models have prefixes of {skipped} and {other}, and predict other tokens")
    windows = [w for i, row in enumerate(documents) for w in cut(len(row), size, step, i, skipped)]
    total = sum(w.end - w.first for w in windows)
    if not total:
        raise DataError("there is nothing to predict: give a longer text")
    found, progress = torch.zeros(4, dtype=torch.float64), Progress(report, total)
    device, rows = next(model.parameters()).device, [torch.tensor(row, dtype=torch.long) for row in documents]
    with eval_mode(model), eval_mode(changed):
        readers = Reader(model), Reader(changed)
        for batch in batches(windows, TOKENS.get(device.type, MANY)):
            given = [(rows[window.document], window) for window in batch]
            for (first, wanted), (second, _) in zip(*(r.predicted(given, device) for r in readers), strict=True):
                old, new = first.log_softmax(-1), second.log_softmax(-1)
                nats = (F.nll_loss(logs, wanted, reduction="none") for logs in (old, new))
                kl, same = F.kl_div(new, old, reduction="none", log_target=True), old.argmax(-1) == new.argmax(-1)
                found += torch.stack([each.sum(dtype=torch.float64) for each in (*nats, kl, same)]).cpu()
            progress.tick(sum(window.end - window.first for window in batch))
    before, after, divergence, agreed = found.tolist()
    return Quality(tokens=total, bytes=bytes, before=before, after=after, divergence=divergence, agreed=round(agreed))
