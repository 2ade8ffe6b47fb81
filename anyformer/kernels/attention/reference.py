"""Attention as the papers write it: every score in memory, in promote(dtype, float32). The oracle for all kernels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention.score_bias import score_bias, value_part
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest
from anyformer.kernels.precision import no_autocast


def why_not(request: KernelRequest) -> str | None:
    """It serves everything that weighs scores."""
    return None


def scores(q_BTHK: Tensor, k_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """Scores (B,H,T,S), -inf where a key may not be seen."""
    exact = torch.promote_types(q_BTHK.dtype, torch.float32)
    batch, queries, heads, dim = q_BTHK.shape
    groups = k_BSGK.shape[2]
    q = q_BTHK.to(exact).view(batch, queries, groups, heads // groups, dim).permute(0, 2, 3, 1, 4)
    k = k_BSGK.to(exact).permute(0, 2, 3, 1)[:, :, None]
    score = (q @ k).flatten(1, 2) * terms.scale
    bias = None if terms.scores is None else score_bias(terms.scores, terms.mask.where)
    if bias is not None:
        score = score + bias.to(exact)
    if terms.softcap is not None:
        score = terms.softcap * torch.tanh(score / terms.softcap)
    added, mask = terms.mask.added(), terms.mask.mask()
    if added is not None:
        score = score + added.to(exact)
    return score if mask is None else score.masked_fill(~mask, float("-inf"))


def run(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """Scores, weights, weighted values."""
    with no_autocast(q_BTHK):
        score = scores(q_BTHK, k_BSGK, terms)
        probs_BHTS = terms.mixer.weigh(score, terms.own)
        if terms.dropout > 0:
            probs_BHTS = F.dropout(probs_BHTS, terms.dropout)
        groups = v_BSGK.shape[2]
        v = v_BSGK.to(score.dtype).transpose(1, 2)[:, :, None]
        mixed = probs_BHTS.unflatten(1, (groups, -1)) @ v
        out_BTHK = mixed.flatten(1, 2).transpose(1, 2)
        if terms.values is not None:
            out_BTHK = out_BTHK + value_part(terms.values, probs_BHTS, terms.mask.where)
        return out_BTHK.to(q_BTHK.dtype)


KERNEL = Kernel("reference", why_not, run, reads_masks=True)
