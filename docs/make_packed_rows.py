"""Draw docs/pictures/packed-rows.png: the files of Python's standard library in packed rows."""

from __future__ import annotations

import sys
from pathlib import Path

from anyformer.data.corpus import standard_library
from anyformer.data.dataset import cut
from anyformer.data.packing import Packing, save_figure
from anyformer.data.tokenizer import train_bpe

PICTURE = Path(__file__).resolve().parent / "pictures" / "packed-rows.png"
VOCAB, LENGTH = 3072, 1024


def main() -> None:
    """Draw it, and say what each packing leaves blank."""
    texts = [document.text for document in standard_library().train]
    lengths = [len(ids) + 1 for ids in train_bpe(texts, VOCAB).encode_many(texts)]
    _, start, stop = cut(lengths, LENGTH)
    packed = {kind: Packing.named(kind)().pack(stop - start, LENGTH) for kind in Packing.kinds()}
    save_figure(PICTURE, packed, stop - start)
    for kind, each in packed.items():
        sys.stdout.write(f"{kind}: {len(texts)} files, {len(each)} rows, {each.waste:.2%} blank\n")
