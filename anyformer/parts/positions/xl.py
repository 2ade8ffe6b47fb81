"""Transformer-XL's relative scores (Dai et al. 2019, section 3.3): (q + u).k + (q + v).W_r R_{i-j}.

R_d is a sine vector of the distance d. By the addition theorems, w.R_{i-j} is a product of a query-side vector
(w turned by i) and a key-side one (the sines of j), so any positions are served without a table of distances.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anyformer.specs.axes import Dims, Params, ParamSpec, Position, Problem, QKPositions, ScoreBias, Tensor


@dataclass(frozen=True, kw_only=True)
class TransformerXL(Position, kind="xl"):
    """Content and position biases u and v for each head, and a projection W_r of sine distances."""

    formula = "s_ij = scale ((q_i + u) . k_j + (q_i + v) . W_r R_(i-j)), R_d the sines and cosines of d"
    title = "Transformer-XL"
    relative = True
    reads_content = True
    products = True
    positive = ("theta",)
    theta: float = 10000.0
    shared: bool = False
    """One set of u, v and W_r for all layers, or one in each."""

    def check(self, dims: Dims) -> Iterator[Problem]:
        if dims.width % 2:
            yield "kind", f"'xl' pairs sines with cosines, so width must be even, got {dims.width}"

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        heads = ParamSpec(shape=(dims.heads, dims.head_dim), role="relative")
        return {
            "distance": ParamSpec(shape=(dims.heads * dims.head_dim, dims.width), role="relative"),
            "u": heads,
            "v": heads,
        }

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        return {"frequency": [self.theta ** (-2 * i / dims.width) for i in range(dims.width // 2)]}

    def flops(self, dims: Dims) -> tuple[int, int]:
        # As published: the distances of a row are projected once, then every pair takes one product a head.
        inner = dims.heads * dims.head_dim
        return 2 * inner, 2 * inner * dims.width + 2 * inner

    def scores(self, own: Params, q_BTHK: Tensor, k_BSGK: Tensor, where: QKPositions, scale: float) -> ScoreBias:
        import torch

        exact = torch.promote_types(q_BTHK.dtype, torch.float32)
        heads, kv_heads = q_BTHK.shape[2], k_BSGK.shape[2]
        frequency = own["frequency"].to(exact)
        at_query = (where.q_pos_BT.to(exact)[..., None] * frequency)[:, :, None]
        at_key = where.k_pos_BS.to(exact)[..., None] * frequency
        project_HKD = own["distance"].view(heads, -1, own["distance"].shape[-1])
        on_sin, on_cos = torch.einsum("bthk,hkd->bthd", q_BTHK + own["v"], project_HKD).to(exact).chunk(2, -1)
        sin, cos = at_query.sin(), at_query.cos()
        turned = torch.cat((on_sin * sin + on_cos * cos, on_cos * sin - on_sin * cos), -1) * scale
        keys = torch.cat((at_key.cos(), at_key.sin()), -1)
        groups_u = own["u"].view(kv_heads, heads // kv_heads, -1)
        by_content = torch.einsum("grk,bsgk->bgrs", groups_u, k_BSGK).flatten(1, 2) * scale
        return ScoreBias(q_side_BTHE=turned, k_side_BSE=keys, column_BHS=by_content)
