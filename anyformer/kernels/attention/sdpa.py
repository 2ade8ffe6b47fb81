"""torch's own scaled_dot_product_attention, which picks flash, memory-efficient or plain code by itself."""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyformer.kernels.attention.score_bias import score_bias
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest
from anyformer.kernels.trace_constants import constant

CUDNN_FIRST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
OFTEN = 256
"""Calls of a pass that learns nothing from which a shape is planned for: more than one pass of a deep model makes."""

_seen: Counter[tuple[int, ...]] = Counter()


def why_not(request: KernelRequest) -> str | None:
    """It knows plain softmax over masked and biased scores."""
    if request.mixer.kind != "softmax":
        return f"it computes softmax weights, not {request.mixer.kind}"
    if request.mixer.weights(1):
        return "its softmax has no sink logits"
    if request.softcap:
        return "it cannot cap scores"
    if request.reads_probs:
        return "it does not expose the weights, which this position scheme adds to the values"
    if request.bias and request.dtype in (torch.float16, torch.bfloat16):
        return "it would round the position bias to 16 bits"
    return None


def run(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """One call of torch's function."""
    causal = terms.mask.shape == "causal"
    bias = None if terms.scores is None else score_bias(terms.scores, terms.mask.where)
    if terms.mask.given is not None:
        added = terms.mask.added()
        bias = bias if added is None else added if bias is None else bias + added
    mask = terms.mask.mask() if bias is not None or not causal else None
    if bias is not None:
        causal = False
        bias = bias.to(q_BTHK.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    batch, queries, heads, dim = q_BTHK.shape
    groups = k_BSGK.shape[2]
    k, v = k_BSGK.transpose(1, 2), v_BSGK.transpose(1, 2)
    options: dict[str, Any] = {"attn_mask": mask, "dropout_p": terms.dropout, "scale": terms.scale}
    if queries == 1 and groups < heads and (mask is None or (mask.dim() == 4 and mask.shape[1] == 1)):
        # One query: its heads of a group are queries of one head, and no key is copied for each of them.
        q = q_BTHK.reshape(batch, groups, heads // groups, dim)
        return F.scaled_dot_product_attention(q, k, v, **options).reshape(batch, 1, heads, dim)
    q, options = q_BTHK.transpose(1, 2), options | {"is_causal": causal, "enable_gqa": groups != heads}
    if q_BTHK.is_cuda and _prefers_cudnn(q_BTHK, terms):
        with sdpa_kernel(CUDNN_FIRST, set_priority=True):
            return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


def _prefers_cudnn(q_BTHK: Tensor, terms: AttentionArgs) -> bool:
    """Whether cuDNN is tried first. On Hopper it is the fastest with many queries, and slow with one; it plans for each
    shape anew, which takes longer than a prompt, so that a shape must come often.
    """
    if q_BTHK.shape[1] == 1 or terms.cached or not is_hopper(q_BTHK.device.index or 0):
        return False
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return True
    _seen[q_BTHK.shape] += 1
    return _seen[q_BTHK.shape] >= OFTEN


@constant
def is_hopper(index: int) -> bool:
    """Whether this CUDA device is an H100 or a relative."""
    return torch.cuda.get_device_capability(index)[0] == 9


def prepare(mask: AttentionMask, reach: int | None) -> None:
    """The mask of all layers."""
    if mask.shape == "pattern":
        mask.mask()


KERNEL = Kernel("sdpa", why_not, run, prepare, reads_masks=True)
