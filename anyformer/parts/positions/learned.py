"""Learned positions: one trained row for each position, added to the embeddings (GPT, BERT, OPT)."""

from dataclasses import dataclass

from anyformer.specs.axes import Dims, Params, ParamSpec, Position, Tensor


@dataclass(frozen=True, kw_only=True)
class Learned(Position, kind="learned"):
    """A table of positions, as many as the context unless it says otherwise."""

    minimum = {"offset": 0, "length": 1}
    offset: int = 0
    """Rows before position 0: OPT has 2, RoBERTa its pad id + 1."""
    length: int | None = None
    """How many positions there are; unset: the context. LED's decoder has fewer than its encoder."""

    def equation(self) -> str:
        return f"x_p + P[p + {self.offset}], P learned" if self.offset else "x_p + P[p], P learned"

    def limit(self, context: int) -> int:
        return context if self.length is None else self.length

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        shape = (self.limit(dims.context) + self.offset, dims.embed_width)
        return {"table": ParamSpec(shape=shape, role="position_embedding")}

    def embed(self, own: Params, pos_BT: Tensor, like: Tensor) -> Tensor:
        import torch

        if torch.compiler.is_compiling():
            return own["table"][pos_BT + self.offset].to(like.dtype)
        try:
            return own["table"][pos_BT + self.offset].to(like.dtype)
        except IndexError as error:
            from anyformer.parts.embedding import outside

            count = own["table"].shape[0] - self.offset
            raise outside("positions", pos_BT, count, f"{count}: there are {count} learned positions") from error
