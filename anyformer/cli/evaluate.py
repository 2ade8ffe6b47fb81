"""`anyformer eval`: how well a model predicts texts, or does what it was trained for on a part of its data."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from anyformer.cli.device_args import DTYPES, device_of
from anyformer.cli.model import FOLDER, Bar, check_folder, open_model
from anyformer.cli.parser import Command, add_ignore_keys, together, whole
from anyformer.cli.terminal import console, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.data.tokenizer import Tokenizer
    from anyformer.evals.quality import Quality
    from anyformer.model.model import Model
    from anyformer.train.perplexity import Score


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("model", metavar="MODEL", help=FOLDER)
    parser.add_argument(
        "texts",
        metavar="TEXT",
        nargs="*",
        default=[],
        help="a file of UTF-8 text, also gzipped (.gz), or - for standard input",
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1 (cuda where there is one)")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (float32 on a CPU, else their own)")
    add_ignore_keys(parser)
    parser.add_argument("--json", action="store_true", help="the figures as one JSON document")
    texts = parser.add_argument_group("a text", "perplexity and bits per byte of a decoder")
    texts.add_argument(
        "--stride", type=whole(1), metavar="N", help="tokens by which a window moves on (half of the context)"
    )
    texts.add_argument(
        "--context", type=whole(1), metavar="N", help="tokens that are read at once (the model's context)"
    )
    texts.add_argument(
        "--quantize", choices=["int8", "int4"], help="say also what it loses with weights of 8 or 4 bits"
    )
    part = parser.add_argument_group(
        "a part of its data", "what the model was trained for, by the objective of its run"
    )
    part.add_argument("--part", metavar="NAME", help="train, valid or test, instead of a text")
    part.add_argument("--data", metavar="DIR", help="a folder of anyformer tokenize (that of the run's config)")
    part.add_argument(
        "--length",
        type=whole(1),
        action="append",
        metavar="N",
        help="tokens of a row (those of the run); again for more",
    )
    part.add_argument(
        "--num-beams", type=whole(0), action="append", metavar="N",
        help="translations are searched with N hypotheses, 0: none are made (1, greedy); again for more",
    )  # fmt: skip
    part.add_argument("--limit", type=whole(1), metavar="N", help="sentences that are translated (all)")


TEXT_ONLY, PART_ONLY = ("stride", "context", "quantize"), ("data", "length", "num_beams", "limit")
"""Options that mean something with a text, and with a part of the data."""


def run(given: argparse.Namespace) -> int:
    """Score texts, or measure on a part of the data."""
    check_way(given)
    if given.part is not None:
        from anyformer.cli.evaluate_part import run_part

        return run_part(given, place_of(given))
    return run_texts(given)


def check_way(given: argparse.Namespace) -> None:
    """Refuse what does not go together."""
    if (given.part is None) == (not given.texts):
        both = "give one of TEXT and --part, not both" if given.texts else "nothing to measure on"
        raise InputError(f"{both}: a file (TEXT), or a part of the data such as --part valid")
    others, what = (PART_ONLY, "--part") if given.part is None else (TEXT_ONLY, "a TEXT")
    wrong = [f"--{name.replace('_', '-')}" for name in others if getattr(given, name) is not None]
    if wrong:
        raise InputError(f"{', '.join(wrong)}: of use only with {what}; leave it out")


def run_texts(given: argparse.Namespace) -> int:
    """Score each text, and all of them together."""
    from anyformer.data.text import read_text
    from anyformer.families.io import load

    # All that can be wrong before anything is read.
    _, place, *read = together(
        lambda: check_folder(given.model), lambda: place_of(given), *(partial(read_text, path) for path in given.texts)
    )
    texts = [(str(path), text) for path, text in zip(given.texts, read, strict=True)]
    model, tokenizer = open_model(given.model, **place)
    changed = load(check_folder(given.model), **place, quantize=given.quantize) if given.quantize else None
    from anyformer.train.perplexity import score

    scores: list[tuple[str, Score]] = []
    began = time.perf_counter()
    for path, text in texts:
        with Bar(path) as bar:
            found = score(model, tokenizer, text, stride=given.stride, context=given.context, report=bar)
        scores.append((path, found))
    seconds = time.perf_counter() - began
    total = scores[0][1]
    for _, each in scores[1:]:
        total = total + each
    loss = None if changed is None else _compared(model, changed, tokenizer, texts, given)
    if given.json:
        print_json(_data(total) | {
            "context": total.context, "stride": total.stride, "rule": total.rule, "seconds": round(seconds, 3),
            "texts": [{"text": path} | _data(each) for path, each in scores],
        } | ({} if loss is None else {"quantized": {"kind": given.quantize} | loss.data()}))  # fmt: skip
    else:
        _print(scores, total, "" if loss is None else f"{given.quantize}: {loss.line()}")
    return 0


def place_of(given: argparse.Namespace) -> dict[str, Any]:
    """Device, dtype and keys to ignore, as `load` takes them."""
    import torch

    dtype = None if given.dtype is None else getattr(torch, given.dtype)
    return {"device": device_of(given.device), "dtype": dtype, "ignore_keys": given.ignore_keys}


def _compared(
    model: Model, changed: Model, tokenizer: Tokenizer, texts: list[tuple[str, str]], given: argparse.Namespace
) -> Quality:
    """What the changed model loses, over all texts."""
    from anyformer.evals.quality import compare

    found: list[Quality] = []
    for path, text in texts:
        with Bar(f"{path}, {given.quantize}") as bar:
            found.append(
                compare(model, changed, tokenizer, text, stride=given.stride, context=given.context, report=bar)
            )
    total = found[0]
    for each in found[1:]:
        total = total + each
    return total


def _data(score: Score) -> dict[str, Any]:
    return {
        "tokens": score.tokens, "bytes": score.bytes, "documents": score.documents, "nats": score.nats, "nats_per_token": score.nats_per_token,
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
    print_all(console(), [table, Text(f"\n{total.rule}", style="dim"), *([Text(loss)] if loss else [])])


COMMAND = Command(
    name="eval",
    summary="perplexity on a text, or figures on a part of the data",
    example="""
anyformer eval runs/quickstart notes.txt
anyformer eval runs/quickstart a.txt b.txt.gz --stride 64 --json
anyformer eval runs/quickstart notes.txt --quantize int8
cat notes.txt | anyformer eval runs/quickstart -
anyformer eval runs/pos-tagging --part test
anyformer eval runs/roformer-poems --part valid --length 128 --length 512
anyformer eval runs/transformer-2017 --part valid --num-beams 1 --num-beams 4 --limit 500
""",
    arguments=arguments,
    run=run,
)
