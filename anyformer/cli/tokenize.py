"""`anyformer tokenize`: raw files into shards of tokens that training reads.

anyformer tokenize book.txt --out data/book --train bpe --vocab 8192 --hold-out 0.1
anyformer tokenize shakespeare.txt --out data/chars --train chars --hold-out 0.1
anyformer tokenize pairs.tsv.gz --out data/pairs --train bpe --vocab 16000 --special '<bos>' --hold-out 0.02 --dedupe source
anyformer tokenize en-ru.tsv --out data/en-ru --train bpe --vocab 12000 --source-vocab 8000 --hold-out 0.02
anyformer tokenize train.conllu --valid dev.conllu --out data/tags --train wordpiece --vocab 8000
anyformer tokenize --label neg=bad.txt --label pos=good.txt --lines --out data/mood --tokenizer data/book --hold-out 0.1
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import Bar, working
from anyformer.cli.parser import Command, Parser, flag, number, option, whole
from anyformer.cli.terminal import grid, show, text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.data.corpus import RawFile
    from anyformer.data.scan import Plan
    from anyformer.data.shards import Index
    from anyformer.data.sources import Format

FORMATS = ("text", "jsonl", "tsv", "conllu")
KINDS = ("bpe", "wordpiece", "unigram", "chars")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes, as does `data.make` of a training config."""
    option(parser, "inputs", "files to learn from, also .gz, folders of them, or archive.zip/name", "INPUT", nargs="*")
    option(parser, "--out", "the folder to write, or to finish", "DIR", required=True)
    flag(parser, "--json", "what was made as one JSON document")
    option(parser, "--shard-tokens", "tokens that fill a shard (16,777,216)", whole(1))
    option(parser, "--workers", "threads that encode (one for each core)", whole(1))

    made = parser.add_argument_group("tokenizer", "trained on the examples to learn from, or one that is there")
    option(made, "--train", f"train one: {', '.join(KINDS)}", KINDS, metavar="KIND")
    option(made, "--vocab", "how many tokens it is to have (none for chars)", whole(1))
    flag(made, "--lowercase", "wordpiece: letters lose their case and their accents")
    option(made, "--special", "one more special token, e.g. '<mask>'", "NAME", action="append", default=[])
    option(made, "--sentinels", "special tokens <extra_id_0>, ... for spans", whole(0), default=0)
    option(made, "--tokenizer", "a tokenizer.json, or a folder with one", "PATH")
    words = "pairs: train one for the sources alone, with so many tokens; --train and --vocab are then the targets'"
    option(made, "--source-vocab", words, whole(1))
    option(made, "--source-train", "which kind that is (the same as --train)", KINDS, metavar="KIND")
    option(made, "--source-tokenizer", "pairs: a tokenizer.json for the sources alone", "PATH")

    read = parser.add_argument_group("reading")
    option(read, "--format", f"{', '.join(FORMATS)} (guessed from how the files are called)", "FORMAT")
    between = read.add_mutually_exclusive_group()
    flag(between, "--lines", "text: every line that is not empty is a document")
    flag(between, "--blank-lines", "text: empty lines separate documents")
    option(between, "--start", "text: a line with this in it begins a document", "REGEX")
    flag(read, "--header", "tsv: the first line names the fields")
    many: dict[str, Any] = {"action": "append", "default": []}
    words = "which field is what: text, label, source, target, a, b, c, words, tags, values; tsv fields are 1, 2, ..."
    option(read, "--column", words, _equals, metavar="NAME=FIELD", **many)
    option(read, "--label", "a file all of one class", _equals, metavar="NAME=FILE", **many)

    parts = parser.add_argument_group("parts")
    option(parts, "--valid", "files to watch the training with", "FILE", nargs="+", default=[])
    option(parts, "--test", "files to judge the result on", "FILE", nargs="+", default=[])
    share = number(above=0, most=0.9)
    option(parts, "--hold-out", "for validation: the end of plain text, else drawn by a hash", share, metavar="SHARE")
    option(parts, "--split", "hold out the last examples, or draw them", ("last", "drawn"))
    option(parts, "--dedupe", "draw by this column: equal values are all on one side", "NAME")


def _equals(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def run(given: argparse.Namespace) -> int:
    """Make the folder, and say what is in it."""
    if given.workers is not None:
        import os

        # The library's threads are started when they are first used, and it asks nobody else for their number.
        os.putenv("RAYON_NUM_THREADS", str(given.workers))
    from anyformer.data.tokenizing import tokenize

    plan = _plan(given)
    began = time.perf_counter()
    index, kept = tokenize(plan, progress=progress)
    seconds = time.perf_counter() - began
    show(given.json, lambda: _summary(index, kept, seconds), _page(index, kept, seconds))
    return 0


def make_data(folder: str, make: str, *, quiet: bool, refuse: bool = False) -> None:
    """Make the folder of a training config by its `data.make`, if that says how and it is not there yet.

    `quiet`: what was made is said on standard error. `refuse`: it has to be there, and an error names the command.
    """
    from anyformer.data.shards import INDEX

    if not make or (Path(folder) / INDEX).is_file():
        return
    try:
        words = [*shlex.split(make), "--out", folder]
    except ValueError as error:
        raise InputError(f"data.make: can't be read as a command line: {error}") from error
    if refuse:
        raise InputError(f"{folder}: is not made yet; make it first: {shlex.join(['anyformer', 'tokenize', *words])}")
    parser = Parser(prog="data.make")
    arguments(parser)
    given = parser.parse_args(words)
    # Whoever reads standard output gets JSON alone.
    with redirect_stdout(sys.stderr) if quiet else nullcontext():
        run(given)


def progress(what: str) -> AbstractContextManager[Any]:
    """What is seen of a stage while it goes on."""
    return _training(what) if what.startswith("training") else Bar(what)


@contextmanager
def _training(what: str) -> Iterator[Callable[[int, int], None]]:
    """How long the library's own part of a training takes is not known beforehand: what was read says little of it."""
    with working(what):
        yield lambda done, total: None


def _plan(given: argparse.Namespace) -> Plan:
    from fractions import Fraction

    from anyformer.data.corpus import find_files
    from anyformer.data.scan import SHARD, Plan
    from anyformer.data.tokenizer_training import Training

    if bool(given.inputs) == bool(given.label):
        what = "give files to learn from, or one for each class (--label neg=FILE --label pos=FILE), not both"
        raise InputError(what)
    trained = given.train or given.source_train
    if (given.vocab and not given.train) or (not trained and (given.special or given.sentinels or given.lowercase)):
        what = "--vocab, --special, --sentinels and --lowercase are for a tokenizer to train; add --train KIND"
        raise InputError(what)
    if given.source_vocab and not trained:
        raise InputError("--source-vocab is for a tokenizer to train; add --source-train KIND")
    if given.label and (given.valid or given.test):
        raise InputError("--label: files of one class have no other parts; hold out a share with --hold-out")
    if given.split and not given.hold_out:
        raise InputError("--split says which examples are held out; add --hold-out SHARE")
    out = Path(given.out)
    for folder in [*given.inputs, *given.valid, *given.test, *(path for _, path in given.label)]:
        if Path(folder).is_dir() and out.resolve().is_relative_to(Path(folder).resolve()):
            raise InputError(f"--out: {out} is in {folder}, all files of which are read; pick a folder outside of it")
    labelled = [file for name, path in given.label for file in find_files([path], label=name)]
    files: dict[str, tuple[RawFile, ...]] = {"train": (*find_files(given.inputs), *labelled)}
    files |= {part: tuple(find_files(paths)) for part in ("valid", "test") if (paths := getattr(given, part))}

    def training(kind: str | None, vocab: int | None) -> Training | None:
        return None if kind is None else Training(
            kind=kind, vocab=vocab, specials=tuple(given.special), sentinels=given.sentinels, lowercase=given.lowercase,
        )  # fmt: skip

    twice = {name for name, _ in given.column if [n for n, _ in given.column].count(name) > 1}
    if twice:
        raise InputError(f"--column: {', '.join(sorted(twice))} is given twice")
    return Plan(
        out=out, files=files, format=_format(given, files), columns=dict(given.column), training=training(given.train, given.vocab),
        tokenizer=None if given.tokenizer is None else Path(given.tokenizer),
        source_training=training(given.source_train or (given.train if given.source_vocab else None), given.source_vocab),
        source_tokenizer=None if given.source_tokenizer is None else Path(given.source_tokenizer),
        hold_out=Fraction(str(given.hold_out or 0)), way=given.split, key=given.dedupe, shard=given.shard_tokens or SHARD,
    )  # fmt: skip


def _format(given: argparse.Namespace, files: dict[str, tuple[RawFile, ...]]) -> Format:
    """The format with its options; one that it does not have is an error."""
    from dataclasses import fields

    from anyformer.data.corpus import format_named, guess_format

    kind = given.format or guess_format(file for part in files.values() for file in part)
    leaf = format_named(kind)
    options: dict[str, dict[str, Any]] = {
        "--lines": {"split": "lines"} if given.lines else {},
        "--blank-lines": {"split": "blank_lines"} if given.blank_lines else {},
        "--start": {"split": "start", "start": given.start} if given.start is not None else {},
        "--header": {"header": True} if given.header else {},
    }
    known = {field.name for field in fields(leaf)}
    wrong = sorted(option for option, values in options.items() if not values.keys() <= known)
    if wrong:
        raise InputError(f"{', '.join(wrong)}: files of the format {kind} have no such option")
    return leaf(**{name: value for values in options.values() for name, value in values.items()})


def _summary(index: Index, kept: int, seconds: float) -> dict[str, Any]:
    return {
        "folder": str(index.folder), "format": index.format, "columns": dict(index.columns),
        "names": {column: list(names) for column, names in index.names.items()},
        "vocab": index.vocab, "ids": dict(index.ids), "sentinels": len(index.sentinels),
        "source_vocab": index.source_vocab, "source_ids": dict(index.source_ids),
        "parts": {
            name: {
                "examples": part.examples, "values": dict(part.values), "bytes": part.bytes, "shards": len(part.shards),
                "fingerprint": part.fingerprint,
            }
            for name, part in index.parts.items()
        },
        "shards_kept": kept, "seconds": round(seconds, 3),
    }  # fmt: skip


def _page(index: Index, kept: int, seconds: float) -> Iterator[Any]:
    known = f"vocabulary {index.vocab:,}" if index.vocab else "numbers"
    known = f"vocabularies {index.source_vocab:,} and {index.vocab:,}" if index.source_vocab else known
    yield text(f"{index.folder}: {index.format}, {known}, {seconds:.1f} s")
    columns = list(index.columns)
    table = grid(("", "examples", *columns, "bytes", "shards"), "l" + "r" * (len(columns) + 3))
    for name, part in index.parts.items():
        numbers = (part.examples, *(part.values[column] for column in columns), part.bytes, len(part.shards))
        table.add_row(name, *(f"{n:,}" for n in numbers))
    yield table
    for label, ids in (("special ids", index.ids), ("of the source", index.source_ids)):
        if ids:
            yield text(f"{label}  " + "  ".join(f"{role} {i}" for role, i in ids.items()))
    for column, names in index.names.items():
        yield text(f"classes of {column}  {' '.join(names[:20])}")
    total = sum(len(part.shards) for part in index.parts.values())
    if kept:
        yield text("it was there already" if kept == total else f"{kept} of {total} shards were there already")


COMMAND = Command("tokenize", "text files into shards of tokens to train on", __doc__, arguments, run)
