"""From raw files to a folder of shards: scan, tokenizer, shards, index, and resuming after a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from anyformer.data.encoding import Encoder, ids_of, most_ids
from anyformer.data.scan import HeldOut, Plan, Progress, Report, Survey, find_held_out, take_survey
from anyformer.data.shard_writer import Journal, ShardWriter
from anyformer.data.shards import PARTS, SOURCE, TOKENIZER, TWO, VERSION, Index
from anyformer.data.sources import Record
from anyformer.data.tokenizer import Tokenizer, tokenizer
from anyformer.data.tokenizer_training import sentinel_ids, special_ids, train_tokenizer
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
    job = _Job(plan, survey, find_held_out(plan, survey))
    job.check()
    job.find_tokenizers(journal, progress)
    try:
        with journal.begun(asked, survey, job.tokenizer, job.source, plan.parts) as shards:
            done = sum(map(len, shards.values()))
            for part in plan.parts:
                with progress(f"encoding {part}") as report:
                    job.write(part, shards[part], journal.note, report)
            return journal.finish(job.index(asked, shards)), done
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


@dataclass
class _Job:
    """A folder that is being made: what was asked for, what is known of the files, and the tokenizers."""

    plan: Plan
    survey: Survey
    held: HeldOut | None
    tokenizer: Tokenizer | None = None
    source: Tokenizer | None = None
    """The tokenizer of the source, where it has one of its own."""

    def records(self, part: str) -> Iterable[Record]:
        if self.held is None or part == "test":
            return self.plan.records(part)
        return self.held.choose(self.plan.records("train"), held=part == "valid")

    def check(self) -> None:
        """Refuse a part without examples, and tokenizers that don't go with them, before anything is written."""
        plan, layout = self.plan, self.survey.layout
        for part in plan.parts:
            if next(iter(self.records(part)), None) is None:
                advice = (
                    "give a file that has some" if self.held is None else "hold out another share, or give --valid FILE"
                )
                count = f"{self.survey.documents['train']} to learn from"
                raise DataError(f"the part {part!r} has no example ({count}); {advice}")
        if layout.has_text and plan.training is None and plan.tokenizer is None:
            raise InputError(
                "texts need a tokenizer: train one (--train bpe --vocab 8192) or give one (--tokenizer PATH)"
            )
        if not layout.has_text and (plan.training or plan.tokenizer):
            raise InputError("series of numbers have no tokenizer; leave out --train and --tokenizer")
        if plan.two and set(layout.roles) != {"source", "target"}:
            raise InputError(
                f"a tokenizer of the source is for pairs of source and target, and these examples are made of "
                f"{' '.join(layout.roles)}; leave out --source-train, --source-vocab and --source-tokenizer"
            )

    def find_tokenizers(self, journal: Journal, progress: Progress) -> None:
        """Those of an interrupted run, those that are given, or new ones."""
        plan, layout = self.plan, self.survey.layout
        if not layout.has_text:
            return
        self.tokenizer = journal.tokenizer(TOKENIZER) or (plan.tokenizer and tokenizer(plan.tokenizer))
        if plan.two:
            self.source = journal.tokenizer(SOURCE) or (plan.source_tokenizer and tokenizer(plan.source_tokenizer))
        if self.tokenizer is None and plan.training is not None:
            with progress(f"training {plan.training.kind}") as report:
                roles = [role for role in layout.roles if not (plan.two and role == "source")]
                self.tokenizer = train_tokenizer(lambda: self.texts(roles, report), plan.training)
        if self.source is None and plan.source_training is not None:
            with progress(f"training {plan.source_training.kind} of the source") as report:
                self.source = train_tokenizer(lambda: self.texts(["source"], report), plan.source_training)

    def texts(self, roles: list[str], report: Report) -> Iterator[str]:
        """What a tokenizer is trained on: the columns of some roles."""
        seen = told = 0
        for record in self.records("train"):
            for text in self.survey.layout.texts(self.survey.layout.values(record), roles):
                yield text
                seen += len(text)
            if seen >= told + STEP:
                report(told := seen, self.survey.characters["train"])

    def write(self, part: str, shards: list[dict[str, Any]], note: Callable[[], None], report: Report) -> None:
        """Encode a part, after what its whole shards hold."""
        survey = self.survey
        dtypes = survey.layout.dtypes(most_ids(self.tokenizer, self.source))
        writer = ShardWriter(self.plan.out, part, dtypes, size=self.plan.shard, finished=shards, done=note)
        rest, documents = iter(self.records(part)), sum(shard["examples"] for shard in shards)
        while documents and (record := next(rest, None)) is not None:
            documents -= not record.more
        total, seen = survey.characters[part if self.held is None or part == "test" else "train"], 0
        try:
            for one in Encoder(survey.layout, self.tokenizer, survey.names, self.source).encode(rest):
                writer.add(one.columns, bytes=one.bytes, more=one.more)
                seen += one.characters
                report(seen, total)
            writer.finish()
        finally:
            writer.drop()

    def index(self, asked: Mapping[str, Any], shards: Mapping[str, list[Any]]) -> dict[str, Any]:
        """What index.json says."""
        made, source, names = self.tokenizer, self.source, self.survey.names
        sha256, own = (None if one is None else _sha256(one) for one in (made, source))
        columns = self.survey.layout.dtypes(most_ids(made, source))
        parts: dict[str, Any] = {}
        for part, some in shards.items():
            sums: dict[str, Any] = {name: sum(shard[name] for shard in some) for name in ("examples", "bytes")}
            sums["values"] = {column: sum(shard["values"][column] for shard in some) for column in columns}
            content = [columns, names, sha256, sums, [shard["files"] for shard in some]]
            content += [] if own is None else [own]
            fingerprint = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
            parts[part] = sums | {"fingerprint": fingerprint, "shards": some}
        two: dict[str, Any] = {}
        if source is not None:
            two["source_tokenizer"] = {"sha256": own, "vocab": ids_of(source), "ids": special_ids(source)}
        return {
            "version": TWO if two else VERSION, "format": self.plan.format.kind, "columns": columns, "names": names,
            "tokenizer": None if made is None else {"sha256": sha256, "vocab": ids_of(made)},
            "ids": {} if made is None else special_ids(made), "sentinels": [] if made is None else sentinel_ids(made),
            **two, "parts": parts, **asked,
        }  # fmt: skip
