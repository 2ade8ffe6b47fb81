"""Attention and cross-entropy as functions of plain tensors."""

from typing import Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels import loss
from anyformer.kernels.attention import attend
from anyformer.kernels.linear_cross_entropy import linear_cross_entropy as chunked
from anyformer.model.arguments import unknown_argument
from anyformer.model.token_layout import attention_mask, document_length, place
from anyformer.nn.part import RENAMED, as_pattern, mask_problems, spread
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.full import Full
from anyformer.specs.patterns import Pattern

FULL, SOFTMAX = Full(), Softmax()


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    pattern: str | Pattern | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    **unknown: Any,
) -> Tensor:
    """softmax(scale q k^T) v, in the fastest way that serves the device, the dtype and the pattern.

    q is (batch, queries, heads, head_dim); k and v are (batch, keys, kv_heads, head_dim), tokens before heads, and so is
    the result, in the shape of q. (torch's scaled_dot_product_attention has heads before tokens: transpose(1, 2).)
    kv_heads divides heads; each key head serves as many query heads (GQA, MQA).

    pattern: who sees whom, as text ("causal", "window(128)", "causal & chunked(64)") or a Pattern; the last query stands
    at the last key. mask: instead of a pattern, (queries, keys) or (batch or 1, heads or 1, queries, keys); boolean, True
    where a query may see a key, or numbers that are added to the scores. Neither: every query sees every key. A query
    that sees nothing gives 0.

    scale: 1 / sqrt(head_dim) unless given. softcap: scores become cap tanh(score / cap), before a mask. dropout: the share
    of the weights that is dropped, at every call.
    """
    if unknown:
        raise unknown_argument("attention", unknown, ("pattern", "mask", "scale", "softcap", "dropout"), RENAMED)
    _check(q, k, v, pattern, mask, softcap, dropout)
    found = FULL if pattern is None else as_pattern(pattern, "attention")
    batch, queries, heads, dim = q.shape
    keys = k.shape[1]
    if pattern is not None and queries > keys:
        raise InputError(
            f"attention: pattern: {queries} queries stand at the last of {keys} keys, so there can't be more of them; give "
            "mask= instead"
        )
    # Without a pattern nobody asks where a query stands.
    here, there = place(batch, queries, q.device, before=max(keys - queries, 0)), place(batch, keys, k.device)
    if found.needs_length:
        here.length_BT = there.length_BT = document_length(there, keys)
    lazy_mask = attention_mask(found, here, there, heads=heads)
    if mask is not None:
        lazy_mask.given, lazy_mask.shape = spread(mask, queries, keys), "pattern"
    scale = dim**-0.5 if scale is None else scale
    return attend(q, k, v, scale=scale, mixer=SOFTMAX, own={}, mask=lazy_mask, softcap=softcap, dropout=dropout)


def _check(q: Any, k: Any, v: Any, pattern: Any, mask: Any, softcap: float | None, dropout: float) -> None:
    """Refuse what does not fit, all of it at once."""
    given = {"q": q, "k": k, "v": v}
    strange = [
        f"{name}: expected a tensor, got {type(t).__name__}" for name, t in given.items() if not isinstance(t, Tensor)
    ]
    if strange:
        raise TypeError("\n  ".join(["attention:", *strange]))
    wrong: list[str] = []
    shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in given.items())
    fits = (
        q.dim() == 4 and k.dim() == 4 and k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    )
    if not fits:
        wrong.append(
            "expected q (batch, queries, heads, head_dim) and k, v (batch, keys, kv_heads, head_dim), got " + shapes
        )
    elif q.shape[2] % k.shape[2]:
        fits = False
        wrong.append(
            f"k: {k.shape[2]} key heads do not divide {q.shape[2]} query heads, got {shapes}; tokens come before heads: "
            "(batch, tokens, heads, head_dim), so (batch, heads, tokens, head_dim) needs transpose(1, 2)"
        )
    for what, each in (("dtype", {t.dtype for t in given.values()}), ("device", {t.device for t in given.values()})):
        if len(each) > 1:
            wrong.append(f"q, k and v must have one {what}, got {', '.join(sorted(map(str, each)))}")
    if not q.is_floating_point():
        wrong.append(f"q: expected floating-point numbers, got {q.dtype}")
    if pattern is not None and mask is not None:
        wrong.append("mask: a pattern was given too, and a mask stands for it; give one of them")
    elif mask is not None and fits:
        wrong += mask_problems(mask, q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if softcap is not None and not softcap > 0:
        wrong.append(f"softcap: {softcap!r} is not above 0")
    if not 0 <= dropout < 1:
        wrong.append(f"dropout: {dropout!r} is not from 0 to below 1")
    if wrong:
        raise InputError("\n  ".join(["attention:", *wrong]))


def cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, z_loss: float = 0.0) -> Tensor:
    """Mean of -log softmax(logits)[label] over labels other than -100, in at least fp32; 0 if there are none.

    logits are (..., classes) and labels (...): nothing is shifted. label_smoothing: that share of the target is spread
    over all classes. z_loss: adds this times the mean of logsumexp(logits)^2, which keeps logits small (PaLM).
    """
    _check_loss("cross_entropy", logits, labels, label_smoothing, z_loss)
    if logits.shape[:-1] != labels.shape:
        raise InputError(
            f"cross_entropy: logits are (..., classes) and labels (...), got {tuple(logits.shape)} and {tuple(labels.shape)}"
        )
    return loss.cross_entropy(logits, labels, smoothing=label_smoothing, z=z_loss).total


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """cross_entropy(hidden @ weight.T + bias, labels) without its logits: in chunks of rows, gradients included.

    hidden is (..., width), weight (classes, width), labels (...). softcap: logits become cap tanh(logit / cap).
    """
    _check_loss("linear_cross_entropy", hidden, labels, label_smoothing, z_loss)
    if softcap is not None and not softcap > 0:
        raise InputError(f"linear_cross_entropy: softcap: {softcap!r} is not above 0")
    return chunked(hidden, weight, bias, labels, softcap=softcap, smoothing=label_smoothing, z=z_loss).total


def _check_loss(source: str, numbers: Tensor, labels: Tensor, label_smoothing: float, z_loss: float) -> None:
    wrong: list[str] = []
    if not numbers.is_floating_point() or numbers.dim() < 2:
        wrong.append(f"expected floating-point (..., classes or width), got {numbers.dtype} {tuple(numbers.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        wrong.append(f"labels: expected whole numbers, got {labels.dtype}")
    if not 0 <= label_smoothing <= 1:
        wrong.append(f"label_smoothing: {label_smoothing!r} is not from 0 to 1")
    if not z_loss >= 0:
        wrong.append(f"z_loss: {z_loss!r} is not at least 0")
    if wrong:
        raise InputError("\n  ".join([f"{source}:", *wrong]))
