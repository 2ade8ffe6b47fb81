"""`anyformer eval`: how well a model predicts texts."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import FOLDER, Bar, check_folder, open_model
from anyformer.cli.parser import Command, whole
from anyformer.cli.terminal import console, print_json

if TYPE_CHECKING:
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.measure.quality import Quality
    from anyformer.model.models import Model
    from anyformer.train.evaluate import Score


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("model", metavar="MODEL", help=FOLDER)
    parser.add_argument(
        "texts", metavar="TEXT", nargs="+", help="a file of UTF-8 text, also gzipped (.gz), or - for standard input"
    )
    parser.add_argument(
        "--stride", type=whole(1), metavar="N", help="tokens by which a window moves on (half of the context)"
    )
    parser.add_argument(
        "--context", type=whole(1), metavar="N", help="tokens that are read at once (the model's context)"
    )
    parser.add_argument("--quantize", choices=["int8"], help="say also what it loses with weights of 8 bits")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Score each text, and all of them together."""
    from anyformer.data.corpus import documents
    from anyformer.data.text import read_text
    from anyformer.families.folder import load

    texts = [(str(path), read_text(path)) for path in given.texts]
    model, tokenizer = open_model(given.model)
    changed = load(check_folder(given.model), quantize=given.quantize) if given.quantize else None
    from anyformer.train.evaluate import score

    scores: list[tuple[str, Score]] = []
    began = time.perf_counter()
    for path, text in texts:
        with Bar(path) as bar:
            found = score(model, tokenizer, documents(text), stride=given.stride, context=given.context, report=bar)
        scores.append((path, found))
    seconds = time.perf_counter() - began
    total = scores[0][1]
    for _, each in scores[1:]:
        total = total + each
    loss = None if changed is None else _compared(model, changed, tokenizer, texts, given)
    if given.json:
        print_json(_data(total) | {
            "context": total.context, "stride": total.stride, "seconds": round(seconds, 3),
            "texts": [{"text": path} | _data(each) for path, each in scores],
        } | ({} if loss is None else {"quantized": {"kind": given.quantize} | loss.data()}))  # fmt: skip
    else:
        _print(scores, total, "" if loss is None else f"{given.quantize}: {loss.line()}")
    return 0


def _compared(
    model: Model, changed: Model, tokenizer: Tokenizer, texts: list[tuple[str, str]], given: argparse.Namespace
) -> Quality:
    """What the changed model loses, over all texts."""
    from anyformer.data.corpus import documents
    from anyformer.measure.quality import compare

    found: list[Quality] = []
    for path, text in texts:
        with Bar(f"{path}, {given.quantize}") as bar:
            found.append(
                compare(
                    model, changed, tokenizer, documents(text), stride=given.stride, context=given.context, report=bar
                )
            )
    total = found[0]
    for each in found[1:]:
        total = total + each
    return total


def _data(score: Score) -> dict[str, Any]:
    return {
        "tokens": score.tokens, "bytes": score.bytes, "nats": score.nats, "nats_per_token": score.nats_per_token,
        "perplexity": score.perplexity, "bits_per_byte": score.bits_per_byte,
    }  # fmt: skip


def _print(scores: list[tuple[str, Score]], total: Score, loss: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from anyformer.cli.terminal import print_all

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    for _ in range(4):
        table.add_column(justify="right", no_wrap=True)
    names = ("text", "tokens", "bytes", "perplexity", "bits per byte")
    table.add_row(*(Text(name, style="dim") for name in names))
    rows = scores if len(scores) == 1 else [*scores, ("all", total)]
    for name, each in rows:
        bits = each.bits_per_byte
        table.add_row(
            Text(name), f"{each.tokens:,}", f"{each.bytes:,}", f"{each.perplexity:,.3f}",
            Text("-" if bits is None else f"{bits:.4f}", style="bold"),
        )  # fmt: skip
    windows = f"\nwindows of {total.context} tokens, moved by {total.stride}"
    print_all(console(), [table, Text(windows, style="dim"), *([Text(loss)] if loss else [])])


COMMAND = Command(
    name="eval",
    summary="perplexity and bits per byte of a model on a text",
    example="""
anyformer eval runs/quickstart notes.txt
anyformer eval runs/quickstart a.txt b.txt.gz --stride 64 --json
anyformer eval runs/quickstart notes.txt --quantize int8
cat notes.txt | anyformer eval runs/quickstart -
""",
    arguments=arguments,
    run=run,
)
