"""Attention: the one public call, and the kernels behind it in order of preference.

Shapes: q (B,T,H,K), k and v (B,S,G,K) with G dividing H, result (B,T,H,K).
score = scale q.k + bias, then the soft-cap, then what the mask forbids becomes -inf, then the mixer's weights.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention import block_local, flex, paged_cpu, paged_cuda, reference, sdpa, tiled_flash
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import AttentionArgs, Dispatch, Kernel, KernelRequest, choose, must_repeat

ORDER = (paged_cuda, paged_cpu, flex, block_local, sdpa, tiled_flash, reference)
KERNELS: tuple[Kernel, ...] = tuple(module.KERNEL for module in ORDER)
"""Closed on purpose: the order is policy. First what reads keys where they lie, then what computes no pair in vain, then
what is fused, then what at least keeps no pair in memory, then what serves everything.
"""


_chosen: dict[KernelRequest, Dispatch] = {}
MOST = 4096
"""Requests whose kernel is remembered."""


def choice(request: KernelRequest) -> Dispatch:
    """The kernel for a request, with the refusals of the faster ones. Without pages, none that reads them is asked; with a
    mask of the caller's own, only those that read it.
    """
    found = None if request.compiling else _chosen.get(request)
    if found is None:
        fitting = [kernel for kernel in KERNELS if request.paged or not kernel.reads_pages]
        found = choose(request, [kernel for kernel in fitting if kernel.reads_masks or not request.masked])
        if not request.compiling and len(_chosen) < MOST:
            _chosen[request] = found
    return found


def attend(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, *, kernel: Kernel | None = None, **terms: Any) -> Tensor:
    """Attention by the given kernel, or by the one that the request asks for. `terms` are the fields of `AttentionArgs`."""
    given = AttentionArgs(**terms)
    if kernel is None:
        mask, scores = given.mask, given.scores
        request = KernelRequest(
            device=q_BTHK.device.type, dtype=q_BTHK.dtype, phase="train" if q_BTHK.requires_grad else "prefill",
            shape=mask.shape, pattern=mask.pattern, plain=mask.plain, mixer=given.mixer,
            bias=scores is not None or mask.adds_wider(q_BTHK.dtype), masked=mask.given is not None,
            reads_content=scores is not None and not scores.by_distance,
            products=scores is not None and (scores.q_side_BTHE is not None or scores.key_table_BHSN is not None),
            softcap=given.softcap is not None,
            reads_probs=given.values is not None, dropout=given.dropout > 0, compiling=torch.compiler.is_compiling(),
            recorded=fixed_shapes(q_BTHK.device.type), learned_bias=scores is not None and scores.learns,
            deterministic=must_repeat(),
        )  # fmt: skip
        kernel = choice(request).kernel
    if given.mask.pattern.repeats:
        return run_repeated(kernel, q_BTHK, k_BSGK, v_BSGK, given)
    return kernel.run(q_BTHK, k_BSGK, v_BSGK, given)


WIDER = 8
"""Numbers that `run_repeated` adds to each head. Two are used; kernels of 16 bits ask for a multiple of 8."""


def run_repeated(kernel: Kernel, q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """Attention by a kernel where the pattern lets keys count several times in the softmax: log n on their scores.

    No kernel knows of it. A product of a query's number and a key's is a score like any other, so heads that are a little
    wider say it to all of them.
    """
    mask, dtype = terms.mask, q_BTHK.dtype
    exact = torch.promote_types(dtype, torch.float32)
    more_BT = torch.log1p(mask.pattern.extra(mask.q).to(exact)) / terms.scale
    # In two parts, since one number of 16 bits would round a score by more than the product of two vectors does.
    high_BT = more_BT.to(dtype)
    parts_BTE = torch.stack((high_BT, (more_BT - high_BT.to(exact)).to(dtype)), -1)
    which_BSE = mask.pattern.is_repeated(mask.k).to(k_BSGK.dtype)[..., None].expand(*mask.k.pos.shape, 2)
    wide = kernel.run(_widened(q_BTHK, parts_BTE), _widened(k_BSGK, which_BSE), F.pad(v_BSGK, (0, WIDER)), terms)
    return wide[..., : v_BSGK.shape[-1]]


def _widened(heads_BTHK: Tensor, more_BTE: Tensor) -> Tensor:
    """Every head with the same further numbers, and zeros to fill up."""
    more = F.pad(more_BTE, (0, WIDER - more_BTE.shape[-1]))[:, :, None]
    return torch.cat((heads_BTHK, more.expand(*heads_BTHK.shape[:3], WIDER)), -1)
