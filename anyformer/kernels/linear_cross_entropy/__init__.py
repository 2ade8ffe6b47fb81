"""The loss of a linear map into many classes, without its logits: products and softmax in chunks of rows.

y = softcap(scale (h W^T + b)); the loss of y is that of `kernels.loss.cross_entropy`. A chunk's logits become their own
gradient in place, and what it adds to the gradients of h, W and b is taken at once. So there are three products in all,
as many as with the logits kept, none is done twice, and the backward pass only multiplies by what reaches the loss.
"""

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.linear_cross_entropy import chunks
from anyformer.kernels.loss import IGNORE, LossTerms
from anyformer.kernels.precision import product_dtype


def linear_cross_entropy(
    hidden: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    labels: Tensor,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    smoothing: float = 0.0,
    z: float = 0.0,
    rows: int | None = None,
    exact_sums: bool = False,
    drop: bool = False,
) -> LossTerms:
    """Mean over labels other than -100 for hidden (...,D) and labels (...); 0 if there are none. Terms carry no gradient.

    rows: how many are computed at a time (unset: by the device). exact_sums: the weight's gradient is summed over chunks
    in fp32 if the weight is of 16 bits. drop: rows that do not count are left out before the products, which asks the
    device how many there are; on a CPU that costs nothing and is always done. Under autocast products are in its dtype.
    """
    if hidden.shape[:-1] != labels.shape or hidden.shape[-1] != weight_VD.shape[-1]:
        raise InputError(
            f"linear_cross_entropy: hidden {tuple(hidden.shape)}, weight {tuple(weight_VD.shape)} and labels "
            f"{tuple(labels.shape)} do not fit; they are (...,D), (V,D) and (...)"
        )
    if rows is not None and rows < 1:
        raise InputError(f"linear_cross_entropy: rows {rows} is not at least 1")
    hidden_ND, labels_N = hidden.flatten(0, -2), labels.flatten()
    counted_N = labels_N != IGNORE
    count = counted_N.sum()
    if (drop or hidden.is_cpu) and not fixed_shapes(hidden.device.type) and not hidden.is_meta:
        index = counted_N.nonzero().squeeze(-1)
        if index.shape[0] < labels_N.shape[0]:
            hidden_ND, labels_N = hidden_ND[index], labels_N[index]
    hidden_ND = hidden_ND.to(product_dtype(hidden_ND))
    learns = torch.is_grad_enabled()
    total, sums, *_ = chunks.linear_loss(
        hidden_ND, weight_VD, bias_V, labels_N, scale, softcap, smoothing, z,
        chunks.default_rows(hidden_ND, weight_VD) if rows is None else rows, exact_sums,
        learns and hidden_ND.requires_grad, learns and weight_VD.requires_grad,
        learns and bias_V is not None and bias_V.requires_grad,
    )  # fmt: skip
    share = count.clamp(min=1)
    means = sums.detach() / share
    terms = {"cross_entropy": means[0]}
    if z:
        terms["z"] = means[1]
    return LossTerms(total / share, terms, count)
