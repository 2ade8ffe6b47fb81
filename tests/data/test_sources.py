"""Formats of raw files: records in, where they stand, and one clear error for each thing that can be wrong."""

import gzip
import zipfile

import pytest

from anyformer.data.corpus import RawFile, documents, find_files, format_named, guess_format
from anyformer.data.scan import LAYOUTS, class_names, find_layout
from anyformer.data.sources import Format, Record
from anyformer.data.sources import text as text_module
from anyformer.data.sources.conllu import Conllu
from anyformer.data.sources.jsonl import JsonLines
from anyformer.data.sources.text import Text
from anyformer.data.sources.tsv import Tsv
from anyformer.errors import DataError, InputError


def read(format, text: str) -> list[dict]:
    return [dict(r.fields) for r in format.read(text.splitlines(keepends=True), "f")]


def texts(text: str, **how) -> list[str]:
    return [fields["text"] for fields in read(Text(**how), text)]


def word(i: str, form: str, tag: str) -> str:
    return "\t".join([i, form, "_", tag, "_", "_", "0", "_", "_", "_"])


@pytest.mark.parametrize("kind", Format.kinds())
def test_format_of_every_kind_reads_no_lines_as_no_records_and_has_endings(kind):
    leaf = format_named(kind)
    assert list(leaf().read([], "f")) == []
    assert all(ending.startswith(".") for ending in leaf.endings)
    assert leaf.endings


@pytest.mark.parametrize(
    "text",
    ["one\ntwo\n", "a\n<|endoftext|>\nb\nc\n<|endoftext|>\n", "a\r\n<|endoftext|>\r\n\r\nb\r\n", "x <|endoftext|> y\n"],
)
def test_text_documents_are_those_of_a_corpus(text):
    assert texts(text) == documents(text)


def test_text_by_lines_paragraphs_and_headings():
    text = "\n = One = \nbody\n\n = = Sub = = \nmore \n\n\n = Two = \nend\n"
    assert texts(text, split="lines") == [" = One =", "body", " = = Sub = =", "more", " = Two =", "end"]
    assert texts(text, split="blank_lines") == [" = One = \nbody", " = = Sub = = \nmore ", " = Two = \nend"]
    headed = texts(text, split="start", start="^ = [^=]")
    assert headed == [" = One = \nbody\n\n = = Sub = = \nmore \n\n\n", " = Two = \nend\n"]
    with pytest.raises(InputError, match="no regular expression"):
        Text(split="start", start="(")


@pytest.mark.parametrize("split", ["separator", "blank_lines"])
def test_text_in_pieces_joins_to_the_same_documents(monkeypatch, split):
    text = "".join(f"line {i}\n  indented\n" for i in range(40)) + "\n<|endoftext|>\n" + "last\n"
    whole = texts(text, split=split)
    monkeypatch.setattr(text_module, "PIECE", 30)
    joined, begun = [], False
    records = list(Text(split=split).read(text.splitlines(keepends=True), "f"))
    for record in records:
        if begun:
            joined[-1] += record.fields["text"]
        else:
            joined.append(record.fields["text"])
        begun = record.more
    assert joined == whole
    assert len(records) > 2 * len(whole)


def test_jsonl_tsv_and_conllu_give_fields_and_lines():
    assert read(JsonLines(), '{"text": "a"}\n\n{"text": "b", "label": 1}') == [{"text": "a"}, {"text": "b", "label": 1}]
    assert read(Tsv(), "a\tb\r\n\nc\t\n") == [{"1": "a", "2": "b"}, {"1": "c", "2": ""}]
    assert read(Tsv(header=True), "en\tfr\nGo.\tVa !\n") == [{"en": "Go.", "fr": "Va !"}]
    sentences = "\n".join(
        ["# text = vamonos", word("1-2", "vamonos", "_"), word("1", "vamos", "VERB"), word("2", "nos", "PRON"),
         word("2.1", "x", "X"), "", "", word("1", "Hi", "INTJ")]
    )  # fmt: skip
    found = list(Conllu().read(sentences.splitlines(keepends=True), "f"))
    assert [(r.fields["words"], r.fields["tags"], r.where) for r in found] == [
        (["vamos", "nos"], ["VERB", "PRON"], "f:3"),
        (["Hi"], ["INTJ"], "f:8"),
    ]


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        (JsonLines(), '{"text": "a"}\n{"text": \n', r"f:2: is not JSON: column \d+"),
        (JsonLines(), "[1]\n", r"f:1: is list, and should be an object"),
        (JsonLines(), "[" * 100_000 + "\n", r"f:1: is not JSON"),
        (Tsv(), "a\tb\nc\n", r"f:2: has 1 tab-separated fields, and the first line has 2"),
        (Tsv(header=True), "a\ta\n", "two fields have the same name"),
        (Conllu(), "1\tword\n", r"f:1: has 2 tab-separated fields, and a word of CoNLL-U has 10"),
    ],
)
def test_format_with_a_bad_line_names_it(format, text, message):
    with pytest.raises(DataError, match=message):
        read(format, text)


def test_file_that_is_not_utf8_names_the_byte(tmp_path):
    good = "caf\u00e9 \u65e5\u672c\n" * 5
    (tmp_path / "bad.txt").write_bytes(good.encode() + b"x\xe9y\n")
    with pytest.raises(DataError, match=f"bad.txt: is not UTF-8 text: byte {len(good.encode()) + 1} is 0xE9"):
        list(RawFile(tmp_path / "bad.txt").lines())
    (tmp_path / "cut.txt").write_bytes(good.encode()[:-2])
    with pytest.raises(DataError, match="is not UTF-8 text: byte"):
        list(RawFile(tmp_path / "cut.txt").lines())


def test_files_are_read_plain_packed_and_from_archives(tmp_path):
    text = "\ufeffone\r\ntwo\x0b\u2028\nthree"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8", newline="")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("in/d.txt", text)
        archive.writestr("in/e.txt.gz", gzip.compress(text.encode()))
    for name in ("a.txt", "b.txt.gz", "c.zip/in/d.txt", "c.zip/in/e.txt.gz"):
        (file,) = find_files([tmp_path / name])
        assert list(file.lines()) == ["one\r\n", "two\x0b\u2028\n", "three"]
        assert guess_format([file]) == "text"
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(DataError, match="is not a whole gzip file"):
        list(RawFile(tmp_path / "b.txt.gz").lines())
    with pytest.raises(InputError, match=r"is an archive; name a file in it, such as .*in/d.txt"):
        find_files([tmp_path / "c.zip"])
    with pytest.raises(DataError, match=r"did you mean 'in/d.txt'"):
        list(RawFile(tmp_path / "c.zip/in/e.txt").lines())
    with pytest.raises(DataError, match="there is no such file or folder"):
        find_files([tmp_path / "nothing"])
    # Bit 0 of the flags in both headers of the first file: it has a password.
    packed = bytearray((tmp_path / "c.zip").read_bytes())
    packed[6] |= 1
    packed[packed.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "f.zip").write_bytes(packed)
    with pytest.raises(DataError, match=r"f.zip/in/d.txt: can't be unpacked: .*password.*unpack the archive yourself"):
        list(RawFile(tmp_path / "f.zip/in/d.txt").lines())
    (tmp_path / "g.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"g.zip: is not a whole zip file"):
        find_files([tmp_path / "g.zip"])


def test_folder_gives_its_files_in_order_and_their_format(tmp_path):
    for name in ("b.jsonl", "a/z.jsonl.gz", ".hidden/x.txt", ".y"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = find_files([tmp_path])
    assert [file.name for file in found] == ["z.jsonl.gz", "b.jsonl"]
    assert guess_format(found) == "jsonl"
    (tmp_path / "c.conllu").touch()
    with pytest.raises(InputError, match=r"c.conllu looks like conllu, z.jsonl.gz looks like jsonl.*say --format"):
        guess_format(find_files([tmp_path]))


def test_layout_of_every_kind_is_found_by_names_and_by_request():
    for roles in LAYOUTS:
        assert tuple(find_layout([*roles, "other"], {}).fields) == roles
        asked = {role: f"f{i}" for i, role in enumerate(reversed(roles))}
        assert find_layout(asked.values(), asked).fields == {role: asked[role] for role in roles}
    assert find_layout(["1", "2"], {}).fields == {"source": "1", "target": "2"}
    with pytest.raises(InputError, match="no example is made of text target"):
        find_layout(["x"], {"text": "x", "target": "x"})
    with pytest.raises(InputError, match="--column text=x"):
        find_layout(["x", "y"], {})


@pytest.mark.parametrize(
    ("roles", "fields", "message"),
    [
        (("text",), {"txt": "a"}, r"f:3: has no field 'text'.*did you mean 'txt'"),
        (("text",), {"text": 3}, r"f:3: field 'text': int is given, and a text is needed"),
        (("text",), {"text": "\ud800"}, r"half of a UTF-16 pair"),
        (("text", "label"), {"text": "a", "label": None}, "the name or number of a class is needed"),
        (("words", "tags"), {"words": ["a", "b"], "tags": ["X"]}, "f:3: has 2 words and 1 tags"),
        (("values", "target"), {"values": [1, float("nan")], "target": 1}, "a finite number is needed"),
        (
            ("values", "target"),
            {"values": [1, 10**400], "target": 1},
            "a finite number is needed, of at most 3.4e\\+38",
        ),
        (("values", "target"), {"values": [1, "x"], "target": 1}, "field 'values'"),
    ],
)
def test_layout_with_a_bad_record_names_line_and_field(roles, fields, message):
    layout = find_layout(roles, {})
    with pytest.raises(DataError, match=message):
        layout.values(Record(fields, "f:3"))


def test_layout_reads_classes_and_series():
    assert class_names({"10", "9", "-1"}) == ["-1", "9", "10"]
    assert class_names({"b", "10", "a"}) == ["10", "a", "b"]
    series = find_layout(["values", "target"], {})
    assert series.values(Record({"values": [[1, 2], [3, 4.5]], "target": 2}, "f")) == {
        "values": [1.0, 2.0, 3.0, 4.5],
        "target": [2.0],
    }
    assert series.dtypes(0) == {"values": "float32", "target": "float32"}
    assert find_layout(["a", "b", "c"], {}).values(Record({"a": "x", "b": "y", "c": "z"}, "f"))["label"] == "b"
