"""The three ways in: token ids, image patches, a series of real vectors. Positions and norms come after, in the stack."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.parts.linear import Linear, redraw
from anyformer.specs.embed_head import PatchEmbed, SeriesEmbed, TokenEmbed
from anyformer.specs.formulas import evaluate
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import projects


class Embedding(nn.Embedding):
    """Row `id` of a table (rows, width). `name` and `limit` are what a message calls the ids and the number of rows.

    One of torch's, so that tools that look for those find it, with none of its options set.
    """

    def __init__(self, rows: int, width: int, *, name: str = "ids", limit: str = "rows", advice: str = "") -> None:
        # Past nn.Embedding's own, which would draw numbers.
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = rows, width
        self.padding_idx, self.max_norm, self.norm_type = None, None, 2.0
        self.scale_grad_by_freq = self.sparse = False
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.words = name, limit, advice

    def reset_parameters(self) -> None:
        """Fresh rows of variance 1, cut at 3 sigma."""
        redraw(self.weight, 1.0)

    def forward(self, input: Tensor) -> Tensor:
        ids = input
        if torch.compiler.is_compiling():
            return F.embedding(ids, self.weight)
        try:
            return F.embedding(ids, self.weight)
        except IndexError as error:
            # Values are looked at only after the look-up itself has failed, so a good one costs nothing more.
            name, limit, advice = self.words
            rows = self.weight.shape[0]
            raise outside(name, ids, rows, f"{limit} = {rows}{advice}") from error

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"{rows} x {width}"


def outside(name: str, ids: Tensor, rows: int, limit: str) -> InputError:
    """The error for a number that names no row of a table, with the place of the first such."""
    place = ((ids < 0) | (ids >= rows)).nonzero()[0].tolist()
    where = "row {}, column {}".format(*place) if len(place) == 2 else f"place {place}"
    return InputError(f"{name}: {int(ids[tuple(place)])} in {where} is not from 0 to below {limit}")


class TokenEmbedding(nn.Module):
    """Rows of a table, scaled, projected to the model's width if the table is narrower, plus token types and a task."""

    def __init__(self, spec: ModelSpec, embed: TokenEmbed, rows: int | None = None) -> None:
        super().__init__()
        self.tokens = Embedding(
            spec.input_vocab if rows is None else rows, spec.embed_width, name="token ids",
            limit="source_vocab" if rows is None and spec.source_vocab is not None else "vocab",
            advice="; make ids with this model's own tokenizer, anyformer.tokenizer(folder)",
        )  # fmt: skip
        kinds, names = embed.token_types, {"name": "token_types", "limit": "embed.token_types"}
        self.types = Embedding(kinds, spec.position_width, **names) if kinds else None
        self.tasks = Embedding(embed.task_types, spec.position_width) if embed.task_types else None
        early = projects(spec) and embed.project == "first"
        self.project = Linear(spec.embed_width, spec.width, bias=embed.project_bias) if early else None
        self.scale = evaluate(embed.scale, {"width": spec.width, "depth": spec.depth})
        self.round_scale = embed.round_scale

    def forward(self, ids_BT: Tensor, types_BT: Tensor | None) -> Tensor:
        x = self.tokens(ids_BT)
        if self.scale != 1.0:
            x = x * (torch.full((), self.scale, dtype=x.dtype, device=x.device) if self.round_scale else self.scale)
        if self.project is not None:
            x = self.project(x)
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids_BT) if types_BT is None else types_BT)
        if self.tasks is not None:
            x = x + self.tasks(torch.zeros_like(ids_BT))
        return x


class PatchEmbedding(nn.Module):
    """Square patches, flattened channel by channel and projected, after an optional class token."""

    class_token: Tensor | None

    def __init__(self, spec: ModelSpec, embed: PatchEmbed) -> None:
        super().__init__()
        self.spec = embed
        self.patches = Linear(embed.channels * embed.patch**2, spec.width, bias=embed.bias)
        self.register_parameter("class_token", nn.Parameter(torch.empty(spec.width)) if embed.class_token else None)

    def forward(self, pixels_BCHW: Tensor, types_BT: None = None) -> Tensor:
        e = self.spec
        if pixels_BCHW.shape[1:] != (e.channels, e.image, e.image):
            raise InputError(
                f"pixel_values: expected (B, {e.channels}, {e.image}, {e.image}), got {tuple(pixels_BCHW.shape)}"
            )
        cut = pixels_BCHW.unflatten(3, (-1, e.patch)).unflatten(2, (-1, e.patch))
        x = self.patches(cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        if self.class_token is not None:
            x = torch.cat((self.class_token.expand(x.shape[0], 1, -1), x), 1)
        return x


class SeriesEmbedding(nn.Module):
    """A linear map of each time step."""

    def __init__(self, spec: ModelSpec, embed: SeriesEmbed) -> None:
        super().__init__()
        self.series = Linear(embed.channels, spec.width, bias=embed.bias)

    def forward(self, values_BTC: Tensor, types_BT: None = None) -> Tensor:
        channels = self.series.weight.shape[1]
        if values_BTC.dim() != 3 or values_BTC.shape[-1] != channels:
            raise InputError(f"values: expected (B, T, {channels}), got {tuple(values_BTC.shape)}")
        return self.series(values_BTC)


def embedding(spec: ModelSpec, *, target: bool = False) -> nn.Module:
    """The module for a spec's `embed`; `target`: of the decoder, where that has a table of its own."""
    match spec.embed:
        case TokenEmbed() as embed:
            return TokenEmbedding(spec, embed, spec.vocab if target else None)
        case PatchEmbed() as embed:
            return PatchEmbedding(spec, embed)
        case SeriesEmbed() as embed:
            return SeriesEmbedding(spec, embed)
        case _:
            raise TypeError(f"no module for embed kind {spec.embed.kind!r}")
