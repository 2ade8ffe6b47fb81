"""Write docs/generation-equality.md from what `verify generation` finds.

Every family that goes from tokens to tokens, in its small config, and random specs, in fp64 and fp32. It takes two
minutes; a mismatch is named on the page and by the exit status.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "generation-equality.md"
PROMPTS, NEW, SPECS = 3, 12, 120
HEAD = """# The same tokens in every way

A prompt gets the same answer alone, in a batch, with a cache and without one, streamed, from blocks, with proposals and
among requests that come and go. To check a model of your own:

    anyformer verify generation path/to/checkpoint

Each answer is held against the prompt alone, read at once, with a cache. There are {prompts} prompts of random tokens,
longer than every window of the small configs where they have one, and {new} new tokens each: once the likeliest, once
drawn with a seed. Every parameter is random. Batches are in random order, with a stranger in them; prompts are read in
pieces of {chunk}, blocks hold {page} tokens; the engine runs 3 sequences, with blocks for less than two of the longest rows,
and strangers that are cancelled; proposals are wrong about a third of the time.

- In **fp64** not one token may differ, and log-probabilities agree to {same:g} of the largest.
- In **fp32** a first difference counts as a mismatch only if it was no near-tie: the two largest logits further apart
  than {tie:g} of the range of all, or a draw further than {tie:g} from the other token's share.

An encoder-decoder starts from one token, so no prompt can be cut. LSH attention is exact within one chunk, where it is
measured here; beyond, it groups tokens by what is read at once.

This page is written by `python docs/make.py generation`.
"""
TAIL = """
## Keys and values in 8 bits

A pool with `kv_cache_dtype="int8"` is another model, a little: keys and values are rounded to 8 bits, with a scale for each head
of a token. `bench/kv_int8.py` reads windows of 512 tokens through both kinds of pool, 16 tokens at a time, in fp32.
The windows run across documents, so their perplexity is not that of `anyformer eval`:

| model | tokens | bytes of the pool | perplexity | same first choice | mean KL, nats |
|---|---|---|---|---|---|
| stories260K (heads of 8) on TinyStories | 32,768 | 37.5% | 8.2449 -> 8.2709 (+0.32%) | 96.5% | 5.0e-3 |
| random weights, heads of 64 | 8,192 | 26.6% | 3260.5 -> 3260.4 | 97.7% | 9.3e-5 |
| random weights, heads of 128 | 8,192 | 25.8% | 3318.8 -> 3318.5 | 97.1% | 1.1e-4 |

Bytes are against fp32; against bf16 they are twice that share. A scale is 4 bytes for each head, which heads of 8 feel.
"""


@dataclass
class Sum:
    """What several models add up to."""

    answers: int = 0
    tokens: int = 0
    mismatches: int = 0
    ties: int = 0
    worst: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, row: Any) -> None:
        """One way of one model."""
        self.answers += row.cases
        self.tokens += row.tokens
        self.mismatches += row.mismatches
        self.ties += row.ties
        self.worst = max(self.worst, row.difference or 0.0)
        if row.mismatches:
            self.wrong.append(f"{name}: {row.mode}: {row.first}")


def models(dtype: str) -> Iterator[tuple[str, Any, int | None]]:
    """Name, model and length of the longest prompt of everything that is checked."""
    import torch

    import anyformer as af
    from anyformer.verify.packing import randomise
    from tests.contract.draw import draw
    from tests.generation.talking import talking
    from tests.generation.test_equality import KINDS, spec_of

    specs = [(kind, spec_of(kind)) for kind in KINDS] + [
        (f"random {seed}", draw(seed)) for seed in talking(range(SPECS))
    ]
    for name, spec in specs:
        made = randomise(af.build(spec, dtype=getattr(torch, dtype)), 0)
        yield name, made, 11 if name == "reformer" else None


def main() -> int:
    """Write the page; 1 if a token differs."""
    import torch

    from anyformer.verify.generation import BLOCK as SIZE
    from anyformer.verify.generation import CHUNK, MODES, SAME, TIE, equality

    torch.set_num_threads(1)
    ways = {(way.name, dtype): Sum() for way in MODES for dtype in ("float64", "float32")}
    kinds: dict[tuple[str, str], Sum] = {}
    for dtype in ("float64", "float32"):
        for name, model, length in models(dtype):
            sys.stderr.write(f"\r{dtype} {name:40}")
            row_name = "random specs" if name.startswith("random ") else name
            found = equality(model, prompts=PROMPTS, length=length, new=NEW)
            for row in found.rows:
                ways[row.mode, dtype].add(name, row)
                kinds.setdefault((row_name, dtype), Sum()).add(name, row)
    sys.stderr.write("\n")
    lines = [HEAD.format(prompts=PROMPTS, new=NEW, chunk=CHUNK, page=SIZE, same=SAME, tie=TIE)]
    total = [sum(each.answers for (_, dtype), each in ways.items() if dtype == kind) for kind in ("float64", "float32")]
    families = len({name for name, _ in kinds}) - 1
    lines.append(
        f"{families} families and the random specs among {SPECS} draws: {total[0]} answers in fp64, {total[1]} in fp32.\n"
    )
    lines += [*table("way", ways), "", *table("family", kinds)]
    wrong = [line for each in kinds.values() for line in each.wrong]
    PAGE.write_text("\n".join(lines) + "\n" + TAIL, encoding="utf-8")
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


def table(what: str, sums: dict[tuple[str, str], Sum]) -> list[str]:
    """Rows of both dtypes beside each other."""
    lines = [
        f"| {what} | fp64: answers | tokens | mismatches | max difference | fp32: answers | mismatches | near-ties |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(name for name, _ in sums):
        wide, narrow = sums[name, "float64"], sums[name, "float32"]
        worst = "-" if not wide.worst else f"{wide.worst:.0e}"
        cells = (
            name,
            wide.answers,
            wide.tokens,
            wide.mismatches,
            worst,
            narrow.answers,
            narrow.mismatches,
            narrow.ties,
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return lines
