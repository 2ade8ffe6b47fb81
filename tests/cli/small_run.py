"""A folder such as a training run leaves behind, with a model so small that nothing takes time."""

from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, train_bpe
from tests.contract.contracts import randomise
from tests.contract.draw import BASE

TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 4


def small_run(folder: Path, changes: dict[str, Any] | None = None) -> tuple[af.Model, Tokenizer]:
    """Write a model and its tokenizer; what was written."""
    tokenizer = train_bpe([TEXT], 280)
    spec = af.spec(BASE, {"vocab": tokenizer.vocab, "ids": {"bos": 0}} | (changes or {}))
    model = randomise(af.build(spec), 0).eval()
    af.save(model, folder)
    tokenizer.save(folder)
    return model, tokenizer
