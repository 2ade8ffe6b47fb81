"""What stands behind a mask: fill-mask."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import Reader, Row, check_count
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import without_head

USUAL = ("[MASK]", "<mask>")


class FillMask(Reader):
    """`pipe("Paris is the [MASK] of France.")`: the likeliest tokens for the mask."""

    spelled = True

    def __init__(self, source: Source) -> None:
        spec = source.model.spec
        if spec.topology != "encoder" or not spec.head.predicts_tokens:
            raise InputError(
                f"fill-mask: needs an encoder that predicts masked tokens, and this model is a{'n' if spec.topology != 'decoder' else ''} "
                f"{spec.topology} with a {spec.head.kind!r} head"
            )
        mask = source.token("mask_token", *USUAL)
        if mask is None:
            raise InputError(f"fill-mask: the tokenizer has no mask token (such as {' or '.join(USUAL)})")
        super().__init__(source, without_head(source.model))
        self.mask = mask
        self.pad = spec.ids.pad if spec.ids.pad is not None else source.token("pad_token")
        self.mask_token: str = source.tokenizer.inner.id_to_token(mask) or USUAL[0]
        """How the mask is written in a text."""

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        top_k: int = 5,
        targets: str | Sequence[str] | None = None,
        batch_size: int | None = None,
        truncation: bool = False,
    ) -> list[Any]:
        """The likeliest tokens for the mask of a text, or of each text of a list.

        Args:
            inputs: Texts with the mask token; with several masks, each has a list of its own.
            top_k: How many tokens.
            targets: Only these tokens. One that is no token of the vocabulary stands for its first, with a warning.
            batch_size: Texts at once.
            truncation: Cut texts that are too long.
        """
        count = check_count("top_k", top_k)
        chosen = None if targets is None else self._targets([targets] if isinstance(targets, str) else targets)

        def answer(out: Any, b: int, row: Row) -> list[Any]:
            return self._fill(out.hidden[b], row, count, chosen)

        return self.read(inputs, answer, batch_size=batch_size, truncation=truncation)

    def check(self, i: int, row: Row) -> None:
        if self.mask not in row.ids:
            raise InputError(f"input {i}: has no mask; write {self.mask_token} where a token is to be found")

    def _fill(self, hidden_TD: Tensor, row: Row, count: int | None, targets: Tensor | None) -> list[Any]:
        places = [t for t, token in enumerate(row.ids) if token == self.mask]
        head: Any = self.source.model.head
        # Only the masks pass through the head: it is as wide as the vocabulary.
        logits_MV = head(hidden_TD[None, places])[0]
        probs_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32)).softmax(-1)
        if targets is not None:
            probs_MV = probs_MV[:, targets]
        best = probs_MV.topk(min(count or probs_MV.shape[-1], probs_MV.shape[-1]))
        filled: list[list[dict[str, Any]]] = []
        for m, place in enumerate(places):
            filled.append([])
            for score, i in zip(best.values[m].tolist(), best.indices[m].tolist(), strict=True):
                token = i if targets is None else int(targets[i])
                # A model may fill in padding, which nobody reads.
                ids = [each for each in (*row.ids[:place], token, *row.ids[place + 1 :]) if each != self.pad]
                filled[-1].append({
                    "score": score, "token": token, "token_str": self.source.tokenizer.decode([token], specials=True),
                    # Other masks would vanish with the special tokens.
                    "sequence": self.source.tokenizer.decode(ids, specials=len(places) > 1),
                })  # fmt: skip
        return filled[0] if len(places) == 1 else filled

    def _targets(self, targets: Sequence[str]) -> Tensor:
        found: list[int] = []
        for target in targets:
            if not isinstance(target, str) or not target:
                raise InputError(f"targets: expected texts, got {target!r}")
            token = self.source.tokenizer.id_of(target)
            if token is None:
                ids = self.source.tokenizer.encode(target)
                if not ids:
                    raise InputError(f"targets: {target!r} has no token in the vocabulary")
                token = ids[0]
                warnings.warn(
                    f"targets: {target!r} is no token of the vocabulary; {self.source.tokenizer.inner.id_to_token(token)!r}, "
                    "its first one, stands for it", stacklevel=3,
                )  # fmt: skip
            found.append(token)
        if not found:
            raise InputError("targets: is empty; give tokens to choose from, or leave it out")
        return torch.tensor(sorted(set(found)), device=self.source.device)
