"""From raw files to a folder of shards: scan, tokenizers, shards, index, and resuming after a kill."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyformer import files
from anyformer.data import shards as stored
from anyformer.data.encoding import Encoder, ids_of, most_ids
from anyformer.data.scan import HeldOut, Plan, Progress, Report, Survey, find_held_out, take_survey
from anyformer.data.shards import INDEX, JOURNAL, PARTS, SOURCE, TOKENIZER, VERSION, Index, Shards, file_sha256
from anyformer.data.sources import Record
from anyformer.data.tokenizer import Tokenizer, tokenizer
from anyformer.data.tokenizer_training import sentinel_ids, special_ids, train_tokenizer
from anyformer.errors import DataError, InputError

STEP = 2**18
"""Characters between two reports of progress."""
LEFT = re.compile(r"\..+\.tmp-\d+")
"""Names of files that a killed process had not finished."""
Tokenizers = dict[str, Tokenizer | None]
"""By the names of their files: TOKENIZER, and SOURCE where the source has one of its own."""


def tokenize(
    plan: Plan, progress: Progress = lambda _: contextlib.nullcontext(lambda done, total: None)
) -> tuple[Index, int]:
    """Make the folder, or finish it; its index, and how many shards were there. `progress` reports each stage."""
    journal = Journal(plan.out, _asked(plan, progress))
    made = journal.finished()
    if made is not None:
        return made, sum(len(part.shards) for part in made.parts.values())
    survey = journal.survey()
    if survey is None:
        with progress("reading") as report:
            survey = take_survey(plan, report)
    job = _Job(plan, survey, find_held_out(plan, survey))
    job.check()
    job.find_tokenizers(journal, progress)
    try:
        with journal.begun(survey, job.tokenizers, plan.parts) as shards:
            done = sum(map(len, shards.values()))
            for part in plan.parts:
                with progress(f"encoding {part}") as report:
                    job.write(part, shards[part], journal.note, report)
            return journal.finish(job.index(shards)), done
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
    options = {
        "format": {"kind": plan.format.kind, **asdict(plan.format)},
        "columns": dict(plan.columns),
        "train": plan.training and asdict(plan.training),
        "tokenizer": plan.tokenizer and _sha256(tokenizer(plan.tokenizer)),
        "source_train": plan.source_training and asdict(plan.source_training),
        "source_tokenizer": plan.source_tokenizer and _sha256(tokenizer(plan.source_tokenizer)),
        "hold_out": str(plan.hold_out),
        "split": plan.way,
        "dedupe": plan.key,
        "shard_tokens": plan.shard,
    }
    # As it comes back from a file: tuples are lists.
    return json.loads(json.dumps({"inputs": inputs, "options": options}))


def _sha256(made: Tokenizer | None) -> str | None:
    return made and hashlib.sha256(made.to_json().encode()).hexdigest()


class Journal:
    """What is done so far, in the folder itself: whole shards, and what they were made of."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder, self.asked = folder, asked
        self.shards: dict[str, Shards] = {}
        self._saved: dict[str, Any] = {}
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(f"{folder}: is a file; give the name of a folder")
        there = {file.name for file in folder.iterdir()} if folder.is_dir() else set[str]()
        names = sorted(there - {INDEX, JOURNAL, TOKENIZER, SOURCE})
        strange = [name for name in names if not stored.NAMED.fullmatch(name) and not LEFT.fullmatch(name)]
        if strange:
            raise InputError(f"{folder}: holds {', '.join(strange[:3])}, which is not ours; pick another folder")
        place, self._found = folder / JOURNAL, _state(folder)
        if place.is_file():
            try:
                found = json.loads(place.read_bytes())
                self._saved = {key: found[key] for key in ("asked", "survey", "tokenizer", "shards")}
                self._saved["source_tokenizer"] = found.get("source_tokenizer")
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{place}: is damaged; remove the folder {folder} and begin anew") from error

    def finished(self) -> Index | None:
        """The index of a folder that is complete already."""
        if not (self.folder / INDEX).is_file():
            return None
        index = stored.open_index(self.folder)
        self._compare({"inputs": list(index.inputs), "options": index.options})
        files.DISK.remove(self.folder / JOURNAL)
        return index

    def survey(self) -> Survey | None:
        """What an interrupted run found, if the files and what is asked for are still the same."""
        if not self._saved:
            return None
        try:
            self._compare(self._saved["asked"])
        except InputError:
            if any(self._saved["shards"].values()):
                raise
            # Nothing is lost: no shard was finished, as when the first try had an option wrong.
            self._saved = {}
            return None
        return Survey(**self._saved["survey"])

    def _compare(self, old: Mapping[str, Any]) -> None:
        was, now = old["options"], self.asked["options"]
        differs = [f"{key} was {was.get(key)!r} and is {now[key]!r}" for key in now if was.get(key) != now[key]]
        before, given = (
            {(i["part"], i["name"], i["label"], i["sha256"]) for i in one["inputs"]} for one in (old, self.asked)
        )
        differs += [f"the {part} file {name} is another" for part, name, *_ in sorted(given - before, key=str)]
        differs += [f"the {part} file {name} was there" for part, name, *_ in sorted(before - given, key=str)]
        if not differs and old["inputs"] != self.asked["inputs"]:
            differs.append("the order of the files is another")
        if differs:
            what = "; ".join(differs)
            raise InputError(f"{self.folder}: was made of something else: {what}; pick another folder, or remove it")

    def tokenizer(self, name: str) -> Tokenizer | None:
        """A tokenizer of an interrupted run, by the name of its file."""
        place = self.folder / name
        whole = self._saved and place.is_file() and file_sha256(place) == self._saved[place.stem]
        return tokenizer(place) if whole else None

    @contextlib.contextmanager
    def begun(self, survey: Survey, tokenizers: Tokenizers, parts: Iterable[str]) -> Iterator[dict[str, Shards]]:
        """The shards of each part so far, in a folder that nobody else writes to meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{self.folder}: another process writes to it; wait, or pick another") from error
            if _state(self.folder) != self._found:
                # Going on from what was read before would remove shards that were finished since.
                raise InputError(f"{self.folder}: another process wrote to it meanwhile; run the command again")
            sha256: dict[str, str | None] = {}
            for place, one in ((self.folder / name, one) for name, one in tokenizers.items()):
                if one is not None:
                    one.save(place)
                sha256[place.stem] = None if one is None else file_sha256(place)
            same = all(self._saved.get(name) == digest for name, digest in sha256.items())
            told = self._saved.get("shards", {}) if same else {}
            self.shards = {part: self._whole(told.get(part, [])) for part in parts}
            self._saved = {"asked": self.asked, "survey": asdict(survey), **sha256, "shards": self.shards}
            # What a killed process left: arrays that no journal speaks of.
            known = {array["file"] for some in self.shards.values() for array in stored.arrays_of(some)}
            for file in self.folder.iterdir():
                if (stored.NAMED.fullmatch(file.name) and file.name not in known) or LEFT.fullmatch(file.name):
                    files.DISK.remove(file)
            self.note()
            yield self.shards
        finally:
            os.close(handle)

    def _whole(self, shards: Shards) -> Shards:
        """The shards up to the first that is damaged."""
        for i, shard in enumerate(shards):
            try:
                for array in stored.arrays_of([shard]):
                    stored.check_array(self.folder, array, verify=True)
            except DataError:
                return shards[:i]
        return list(shards)

    def note(self) -> None:
        _write_json(self.folder / JOURNAL, {"version": VERSION, **self._saved})

    def finish(self, index: dict[str, Any]) -> Index:
        """The index, last of all."""
        _write_json(self.folder / INDEX, index | self.asked)
        files.DISK.remove(self.folder / JOURNAL)
        return stored.open_index(self.folder)


@dataclass
class _Job:
    """A folder that is being made: what was asked for, what is known of the files, and the tokenizers."""

    plan: Plan
    survey: Survey
    held: HeldOut | None
    tokenizers: Tokenizers = field(default_factory=lambda: {TOKENIZER: None, SOURCE: None})

    def records(self, part: str) -> Iterable[Record]:
        if self.held is None or part == "test":
            return self.plan.records(part)
        return self.held.choose(self.plan.records("train"), held=part == "valid")

    def check(self) -> None:
        """Refuse a part without examples, and tokenizers that don't go with them, before anything is written."""
        plan, layout = self.plan, self.survey.layout
        for part in plan.parts:
            if next(iter(self.records(part)), None) is None:
                share = "hold out another share, or give --valid FILE"
                advice = "give a file that has some" if self.held is None else share
                count = f"{self.survey.documents['train']} to learn from"
                raise DataError(f"the part {part!r} has no example ({count}); {advice}")
        given = plan.training is not None or plan.tokenizer is not None
        if layout.texts and not given:
            raise InputError(
                "texts need a tokenizer: train one (--train bpe --vocab 8192) or give one (--tokenizer PATH)"
            )
        if given and not layout.texts:
            raise InputError("series of numbers have no tokenizer; leave out --train and --tokenizer")
        if plan.two and set(layout.roles) != {"source", "target"}:
            raise InputError(
                f"a tokenizer of the source is for pairs of source and target, and these examples are made of "
                f"{' '.join(layout.roles)}; leave out --source-train, --source-vocab and --source-tokenizer"
            )

    def find_tokenizers(self, journal: Journal, progress: Progress) -> None:
        """Those of an interrupted run, those that are given, or new ones."""
        plan, layout = self.plan, self.survey.layout
        roles = [role for role in layout.texts if not (plan.two and role == "source")]
        for name, whose, training, path, read in (
            (TOKENIZER, "", plan.training, plan.tokenizer, roles),
            (SOURCE, " of the source", plan.source_training, plan.source_tokenizer, ["source"]),
        ):
            made = journal.tokenizer(name) or (path and tokenizer(path))
            if made is None and training is not None:
                with progress(f"training {training.kind}{whose}") as report:
                    made = train_tokenizer(partial(self.texts, read, report), training)
            self.tokenizers[name] = made

    def texts(self, roles: list[str], report: Report) -> Iterator[str]:
        """What a tokenizer is trained on: the columns of some roles."""
        layout, seen, told = self.survey.layout, 0, 0
        for record in self.records("train"):
            values = layout.values(record)
            for text in (layout.text(values, role) for role in roles):
                yield text
                seen += len(text)
            if seen >= told + STEP:
                report(told := seen, self.survey.characters["train"])

    def write(self, part: str, shards: Shards, note: Callable[[], None], report: Report) -> None:
        """Encode a part, after what its whole shards hold."""
        survey, made = self.survey, self.tokenizers
        dtypes = survey.layout.dtypes(most_ids(*made.values()))
        writer = stored.ShardWriter(self.plan.out, part, dtypes, size=self.plan.shard, finished=shards, done=note)
        rest, documents = iter(self.records(part)), sum(shard["examples"] for shard in shards)
        while documents and (record := next(rest, None)) is not None:
            documents -= not record.more
        total, seen = survey.characters[part if self.held is None or part == "test" else "train"], 0
        with contextlib.closing(writer):
            for one in Encoder(survey.layout, made[TOKENIZER], survey.names, made[SOURCE]).encode(rest):
                writer.add(one.columns, bytes=one.bytes, more=one.more)
                seen += one.characters
                report(seen, total)
            writer.finish()

    def index(self, shards: Mapping[str, Shards]) -> dict[str, Any]:
        """What index.json says, but for what was asked."""
        made, source = self.tokenizers.values()
        sha256, own, names = _sha256(made), _sha256(source), self.survey.names
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
            "version": stored.TWO if two else VERSION, "format": self.plan.format.kind, "columns": columns, "names": names,
            "tokenizer": None if made is None else {"sha256": sha256, "vocab": ids_of(made)},
            "ids": {} if made is None else special_ids(made), "sentinels": [] if made is None else sentinel_ids(made),
            **two, "parts": parts,
        }  # fmt: skip


def _state(folder: Path) -> list[Any]:
    """What tells one state of a folder from another: every note of progress is a new file."""
    state: list[Any] = []
    for name in (INDEX, JOURNAL):
        with contextlib.suppress(FileNotFoundError):
            found = (folder / name).stat()
            state.append((name, found.st_ino, found.st_mtime_ns, found.st_size))
    return state


def _write_json(place: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    files.replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8"))
