"""The loss of a linear map into many classes, without its logits: products and softmax in chunks of rows.

y = softcap(scale (h W^T + b)); the loss of y is that of `kernels.loss.cross_entropy`. A chunk's logits become their own
gradient in place, and what it adds to the gradients of h, W and b is taken at once. So there are three products in all,
as many as with the logits kept, none is done twice, and the backward pass only multiplies by what reaches the loss.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.loss import IGNORE, LossTerms
from anyformer.kernels.precision import no_autocast, product_dtype
from anyformer.kernels.triton_launch import has_triton

SHARE = {"cpu": 4 << 20, "cuda": 1 << 30}
"""Bytes of a chunk's logits: on a CPU they stay in its cache; on a GPU products of fewer rows would not fill it."""
ALIGN = 64
"""A GPU's 16-bit products are slow where rows of logits do not begin at a multiple of so many."""


class Row(NamedTuple):
    """What a row of logits goes through."""

    vocab: int
    """Columns beyond are there for the device's sake."""
    scale: float
    softcap: float | None
    smoothing: float
    z: float
    learns: bool


def softmax_rows(raw_CV: Tensor, labels_C: Tensor, losses_2C: Tensor, row: Row) -> Tensor:
    """Write (cross-entropy, squared log-sum-exp) of each row; answer the gradient of its loss by the raw logits.

    In plain torch, on any device, in as few passes as it allows. The oracle of the fused kernel.
    """
    exact = losses_2C.dtype
    beyond = raw_CV[:, row.vocab :]
    y_CV = raw_CV[:, : row.vocab].to(exact)
    if row.scale != 1.0:
        y_CV *= row.scale
    if row.softcap is not None:
        y_CV.div_(row.softcap).tanh_().mul_(row.softcap)
    counted_C = labels_C != IGNORE
    target_C1 = labels_C.where(counted_C, 0)[:, None]
    share = row.smoothing / row.vocab
    aim_C = (1 - row.smoothing) * y_CV.gather(1, target_C1)[:, 0]
    if row.smoothing:
        aim_C += share * y_CV.sum(1)
    slope_CV = None
    if row.softcap is not None and row.learns:
        slope_CV = (y_CV / row.softcap).square_().neg_().add_(1)
    highest_C = y_CV.amax(1)
    # In place only for contiguous rows: torch's softmax otherwise makes a copy of its own.
    p_CV = torch.softmax(y_CV, 1, out=y_CV) if y_CV.is_contiguous() else y_CV.softmax(1)
    # The highest weight is at least 1 / V, so that its logarithm is exact where that of the label's may be -inf.
    lse_C = highest_C - p_CV.amax(1).log()
    losses_2C[0] = torch.where(counted_C, lse_C - aim_C, 0)
    losses_2C[1] = torch.where(counted_C, lse_C.square(), 0)
    if not row.learns:
        return raw_CV
    if row.z:
        p_CV *= (1 + 2 * row.z * lse_C)[:, None]
    if row.smoothing:
        p_CV -= share
    p_CV.scatter_add_(1, target_C1, torch.full_like(target_C1, row.smoothing - 1, dtype=exact))
    if slope_CV is not None:
        p_CV *= slope_CV
    if row.scale != 1.0:
        p_CV *= row.scale
    p_CV.masked_fill_(~counted_C[:, None], 0)
    if p_CV.dtype == raw_CV.dtype and beyond.shape[1] == 0:
        return p_CV
    beyond.zero_()
    raw_CV[:, : row.vocab] = p_CV
    return raw_CV


def default_rows(hidden_ND: Tensor, weight_VD: Tensor) -> int:
    """Rows of a chunk: a power of two, so that chunks divide the usual batches."""
    room = SHARE.get(hidden_ND.device.type, SHARE["cuda"]) // (weight_VD.shape[0] * hidden_ND.element_size())
    return max(64, 1 << max(room, 1).bit_length() - 1)


def computed(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, labels_N: Tensor, scale: float,
    softcap: float | None, smoothing: float, z: float, rows: int, hidden_learns: bool,
    weight_learns: bool, bias_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The summed loss, its terms (2,), and the gradients of hidden, weight and bias for it (empty where none is asked).

    Products are in the dtype of hidden, all else in promote(dtype, float32).
    """
    count = hidden_ND.shape[0]
    vocab, dtype, device = weight_VD.shape[0], hidden_ND.dtype, hidden_ND.device
    exact = torch.promote_types(dtype, torch.float32)
    spare = -vocab % ALIGN if hidden_ND.is_cuda and dtype in (torch.bfloat16, torch.float16) else 0
    read_VD = weight_VD.to(dtype)
    if spare:
        read_VD = F.pad(read_VD, (0, 0, 0, spare))
    offset_V = None if bias_V is None else F.pad(bias_V.to(dtype), (0, spare))
    row = Row(vocab, scale, softcap, smoothing, z, hidden_learns or weight_learns or bias_learns)
    hidden_grad = torch.empty_like(hidden_ND) if hidden_learns else hidden_ND.new_empty(0)
    weight_grad = torch.empty(read_VD.shape if weight_learns else 0, dtype=weight_VD.dtype, device=device)
    if not count:
        weight_grad.zero_()
    bias_grad = torch.zeros(vocab if bias_learns else 0, dtype=exact, device=device)
    losses_2N = torch.zeros(2, count, dtype=exact, device=device)
    scored = softmax_rows
    if hidden_ND.is_cuda and has_triton() and dtype != torch.float64:
        from anyformer.kernels.linear_cross_entropy.triton_kernels import softmax_rows as scored
    logits = torch.empty(min(rows, count), vocab + spare, dtype=dtype, device=device)
    with no_autocast(hidden_ND):
        for start in range(0, count, rows):
            some = slice(start, min(start + rows, count))
            x_CD = hidden_ND[some]
            y_CV = logits[: x_CD.shape[0]]
            if offset_V is None:
                torch.mm(x_CD, read_VD.t(), out=y_CV)
            else:
                torch.addmm(offset_V, x_CD, read_VD.t(), out=y_CV)
            y_CV = scored(y_CV, labels_N[some], losses_2N[:, some], row)
            if hidden_learns:
                torch.mm(y_CV, read_VD, out=hidden_grad[some])
            if weight_learns:
                _add_product(weight_grad, y_CV, x_CD, first=start == 0)
            if bias_learns:
                bias_grad += y_CV[:, :vocab].sum(0, dtype=exact)
    sums = losses_2N.sum(1)
    total = sums[0] + z * sums[1]
    weight_grad = weight_grad[:vocab] if spare else weight_grad
    return total, sums, hidden_grad, weight_grad, bias_grad if bias_V is None else bias_grad.to(bias_V.dtype)


linear_loss = torch.library.custom_op("anyformer::linear_loss", computed, mutates_args=())
"""The same as one operation."""


def _add_product(sum_VD: Tensor, y_CV: Tensor, x_CD: Tensor, *, first: bool) -> None:
    """Sum += y^T x, where the sum may be wider than the factors; the first product is written over what was there."""
    if sum_VD.dtype == x_CD.dtype:
        torch.addmm(sum_VD, y_CV.t(), x_CD, beta=0 if first else 1, out=sum_VD)
    elif sum_VD.is_cuda and sum_VD.dtype == torch.float32:
        torch.addmm(sum_VD, y_CV.t(), x_CD, out_dtype=torch.float32, beta=0 if first else 1, out=sum_VD)
    else:
        product = y_CV.t() @ x_CD
        _ = sum_VD.copy_(product) if first else sum_VD.add_(product)


@linear_loss.register_fake
def _shapes(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, *rest: object) -> tuple[Tensor, ...]:
    hidden_learns, weight_learns, bias_learns = rest[-3:]
    exact = torch.promote_types(hidden_ND.dtype, torch.float32)
    loss = hidden_ND.new_empty((), dtype=exact)
    return (
        loss,
        loss.new_empty(2),
        torch.empty_like(hidden_ND) if hidden_learns else hidden_ND.new_empty(0),
        weight_VD.new_empty(weight_VD.shape if weight_learns else (0,)),
        loss.new_empty(weight_VD.shape[0] if bias_learns else 0, dtype=exact if bias_V is None else bias_V.dtype),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.asked = inputs[-3:]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[2:])


def _backward(ctx: Any, factor: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    """Each gradient times what reaches the loss; never in place, as a caller may come twice."""
    given = zip(ctx.asked, ctx.saved_tensors, strict=True)
    return *(_times(grad, factor) if asked and factor is not None else None for asked, grad in given), *[None] * 9


def _times(grad: Tensor, factor: Tensor) -> Tensor:
    """The product with a number on the device, which a gradient of 16 bits must not round before."""
    library: Any = torch
    # In a list torch does it several times faster, but only for one dtype.
    return library._foreach_mul([grad], factor)[0] if grad.dtype == factor.dtype else grad * factor


linear_loss.register_autograd(_backward, setup_context=_remember)


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
    drop: bool = False,
) -> LossTerms:
    """Mean over labels other than -100 for hidden (...,D) and labels (...); 0 if there are none. Terms carry no gradient.

    rows: how many are computed at a time (unset: by the device). drop: rows that do not count are left out before the
    products, which asks the device how many there are; on a CPU that costs nothing and is always done. Under autocast
    products are in its dtype.
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
    total, sums, *_ = linear_loss(
        hidden_ND, weight_VD, bias_V, labels_N, scale, softcap, smoothing, z,
        default_rows(hidden_ND, weight_VD) if rows is None else rows,
        learns and hidden_ND.requires_grad, learns and weight_VD.requires_grad,
        learns and bias_V is not None and bias_V.requires_grad,
    )  # fmt: skip
    share = count.clamp(min=1)
    means = sums.detach() / share
    terms = {"cross_entropy": means[0]}
    if z:
        terms["z"] = means[1]
    return LossTerms(total / share, terms, count)
