"""From raw files to a folder of shards: scan, tokenizer, shards, index, and resuming after a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

from anyformer.data.encoding import Encoder, ids_of, most_ids
from anyformer.data.scan import HeldOut, Plan, Progress, Report, Survey, find_held_out, take_survey
from anyformer.data.shard_writer import Journal, ShardWriter
from anyformer.data.shards import PARTS, TWO, VERSION, Index
from anyformer.data.sources import Record
from anyformer.data.tokenizer import Tokenizer, tokenizer
from anyformer.data.tokenizer_training import Training, sentinel_ids, special_ids, train_tokenizer
from anyformer.errors import DataError, InputError

STEP = 2**18
"""Characters between two reports of progress."""


def tokenize(plan: Plan, progress: Progress = lambda _: nullcontext(lambda done, total: None)) -> tuple[Index, int]:
    """Make the folder, or finish it; its index, and how many shards were there. `progress` reports each stage."""
    journal, asked = Journal(plan.out), _asked(plan, progress)
    made = journal.finished(asked)
    if made is not None:
        return made, sum(len(part.shards) for part in made.parts.values())
    survey = journal.survey(asked)
    if survey is None:
        with progress("reading") as report:
            survey = take_survey(plan, report)
    held = _held_out(plan, survey)
    _check_parts(plan, survey, held)
    known, source = _known_tokenizers(plan, journal, survey)
    if known is None and plan.training is not None and survey.layout.has_text:
        with progress(f"training {plan.training.kind}") as report:
            roles = [role for role in survey.layout.roles if not (plan.two and role == "source")]
            known = _trained(plan, plan.training, survey, held, roles, report)
    if source is None and plan.source_training is not None:
        with progress(f"training {plan.source_training.kind} of the source") as report:
            source = _trained(plan, plan.source_training, survey, held, ["source"], report)
    try:
        with journal.begun(asked, survey, known, source, plan.parts) as shards:
            done = sum(map(len, shards.values()))
            for part in plan.parts:
                with progress(f"encoding {part}") as report:
                    _write_part(plan, survey, held, part, (known, source), shards[part], journal.note, report)
            return journal.finish(_index(plan, asked, survey, known, source, shards)), done
    except OSError as error:
        whole = sum(map(len, journal.shards.values()))
        after = f"{whole} whole shards are kept, and the same command goes on after them"
        raise OSError(error.errno, f"{error.strerror}; {after}", str(error.filename or plan.out)) from error


def _asked(plan: Plan, progress: Progress) -> dict[str, Any]:
    """Everything that the result depends on, as JSON: other inputs or options give another folder."""
    inputs: list[dict[str, Any]] = []
    with progress("hashing") as report:
        every = [(part, file) for part in PARTS for file in plan.files.get(part, ())]
        for part, file in every:
            size, digest = file.sha256()
            inputs.append({"part": part, "name": file.name, "label": file.label, "size": size, "sha256": digest})
            report(len(inputs), len(every))
    given, own = (None if one is None else _sha256(tokenizer(one)) for one in (plan.tokenizer, plan.source_tokenizer))
    options = {
        "format": {"kind": plan.format.kind, **asdict(plan.format)},
        "columns": dict(plan.columns),
        "train": plan.training and asdict(plan.training),
        "tokenizer": given,
        "source_train": plan.source_training and asdict(plan.source_training),
        "source_tokenizer": own,
        "hold_out": str(plan.hold_out),
        "split": plan.way,
        "dedupe": plan.key,
        "shard_tokens": plan.shard,
    }
    # As it comes back from a file: tuples are lists.
    return json.loads(json.dumps({"inputs": inputs, "options": options}))


def _sha256(made: Tokenizer) -> str:
    return hashlib.sha256(made.to_json().encode()).hexdigest()


def _held_out(plan: Plan, survey: Survey) -> HeldOut | None:
    if not plan.hold_out:
        return None
    layout = survey.layout
    if plan.key is not None and plan.key not in layout.fields:
        raise InputError(f"there is no column {plan.key!r} to keep on one side; columns are {', '.join(layout.fields)}")
    way = plan.way or ("last" if plan.format.ordered and not plan.labels and plan.key is None else "drawn")
    return find_held_out(
        lambda: plan.records("train"), layout, plan.hold_out, way, plan.key,
        documents=survey.documents["train"], characters=survey.characters["train"],
    )  # fmt: skip


def _records(plan: Plan, held: HeldOut | None, part: str) -> Iterable[Record]:
    if held is None or part == "test":
        return plan.records(part)
    return held.choose(plan.records("train"), held=part == "valid")


def _check_parts(plan: Plan, survey: Survey, held: HeldOut | None) -> None:
    """Refuse a part without examples before anything is written."""
    for part in plan.parts:
        if next(iter(_records(plan, held, part)), None) is None:
            way = "hold out another share, or give --valid FILE" if held is not None else "give a file that has some"
            raise DataError(f"the part {part!r} has no example ({survey.documents['train']} to learn from); {way}")
    if survey.layout.has_text and plan.training is None and plan.tokenizer is None:
        raise InputError("texts need a tokenizer: train one (--train bpe --vocab 8192) or give one (--tokenizer PATH)")
    if not survey.layout.has_text and (plan.training or plan.tokenizer):
        raise InputError("series of numbers have no tokenizer; leave out --train and --tokenizer")
    if plan.two and set(survey.layout.roles) != {"source", "target"}:
        raise InputError(
            f"a tokenizer of the source is for pairs of source and target, and these examples are made of "
            f"{' '.join(survey.layout.roles)}; leave out --source-train, --source-vocab and --source-tokenizer"
        )


def _known_tokenizers(plan: Plan, journal: Journal, survey: Survey) -> tuple[Tokenizer | None, Tokenizer | None]:
    """The tokenizer, and the source's own, as far as they need not be trained."""
    if not survey.layout.has_text:
        return None, None
    known = journal.tokenizer() or (None if plan.tokenizer is None else tokenizer(plan.tokenizer))
    if not plan.two:
        return known, None
    given = None if plan.source_tokenizer is None else tokenizer(plan.source_tokenizer)
    return known, journal.source_tokenizer() or given


def _trained(
    plan: Plan, training: Training, survey: Survey, held: HeldOut | None, roles: list[str], report: Report
) -> Tokenizer:
    total = survey.characters["train"]

    def texts() -> Iterator[str]:
        seen = told = 0
        for record in _records(plan, held, "train"):
            for text in survey.layout.texts(survey.layout.values(record), roles):
                yield text
                seen += len(text)
            if seen >= told + STEP:
                report(told := seen, total)

    return train_tokenizer(texts, training)


def _write_part(
    plan: Plan,
    survey: Survey,
    held: HeldOut | None,
    part: str,
    made: tuple[Tokenizer | None, Tokenizer | None],
    shards: list[dict[str, Any]],
    note: Callable[[], None],
    report: Report,
) -> None:
    dtypes = survey.layout.dtypes(most_ids(*made))
    writer = ShardWriter(plan.out, part, dtypes, size=plan.shard, finished=shards, done=note)
    rest = _skip(_records(plan, held, part), sum(shard["examples"] for shard in shards))
    total, seen = survey.characters[part if held is None or part == "test" else "train"], 0
    try:
        for one in Encoder(survey.layout, made[0], survey.names, made[1]).encode(rest):
            writer.add(one.columns, bytes=one.bytes, more=one.more)
            seen += one.characters
            report(seen, total)
        writer.finish()
    finally:
        writer.drop()


def _skip(records: Iterable[Record], documents: int) -> Iterator[Record]:
    rest = iter(records)
    while documents and (record := next(rest, None)) is not None:
        documents -= not record.more
    return rest


def _index(
    plan: Plan,
    asked: Mapping[str, Any],
    survey: Survey,
    made: Tokenizer | None,
    source: Tokenizer | None,
    shards: Mapping[str, list[Any]],
) -> dict[str, Any]:
    sha256, own = (None if one is None else _sha256(one) for one in (made, source))
    columns = survey.layout.dtypes(most_ids(made, source))
    parts: dict[str, Any] = {}
    for part, some in shards.items():
        sums: dict[str, Any] = {name: sum(shard[name] for shard in some) for name in ("examples", "bytes")}
        sums["values"] = {column: sum(shard["values"][column] for shard in some) for column in columns}
        content = [columns, survey.names, sha256, sums, [shard["files"] for shard in some]]
        content += [] if own is None else [own]
        fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        parts[part] = sums | {"fingerprint": fingerprint, "shards": some}
    two: dict[str, Any] = {}
    if source is not None:
        two["source_tokenizer"] = {"sha256": own, "vocab": ids_of(source), "ids": special_ids(source)}
    return {
        "version": TWO if two else VERSION, "format": plan.format.kind, "columns": columns, "names": survey.names,
        "tokenizer": None if made is None else {"sha256": sha256, "vocab": ids_of(made)},
        "ids": {} if made is None else special_ids(made), "sentinels": [] if made is None else sentinel_ids(made),
        **two, "parts": parts, **asked,
    }  # fmt: skip
