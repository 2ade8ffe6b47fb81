"""Reading texts: newlines stay, and whatever is wrong is one line that says what to do."""

import gzip
import io
import sys

import pytest

import anyformer as af
from anyformer.data.corpus import read_text


def test_text_keeps_its_newlines_and_every_other_character(tmp_path):
    text = "one\r\ntwo\rthree\n\n\x0b\u2028 naïve \x00 日本\n"
    file = tmp_path / "a.txt"
    file.write_bytes(text.encode())
    assert read_text(file) == read_text(str(file)) == text
    assert len(read_text(file).encode()) == file.stat().st_size


def test_text_in_gzip_is_the_text(tmp_path):
    file = tmp_path / "a.txt.gz"
    file.write_bytes(gzip.compress("naïve\r\n".encode(), mtime=0))
    assert read_text(file) == "naïve\r\n"


def test_text_loses_a_byte_order_mark(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfx \xef\xbb\xbf")
    assert read_text(file) == "x \ufeff"


def test_text_of_a_dash_is_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("a\r\né".encode())))
    assert read_text("-") == "a\r\né"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"", "a.txt: is empty"),
        ("a.txt", b" \r\n\t", "a.txt: has no text"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), "a.txt.gz: is empty"),
        ("a.txt", b"caf\xe9 latin", "a.txt: is not UTF-8 text: byte 3 is 0xE9; convert it first, e.g. with iconv"),
        ("a.txt", b"\xef\xbb\xbfcaf\xe9 ", "byte 6 is 0xE9"),
        ("a.txt.gz", b"plain text", "a.txt.gz: is not a whole gzip file"),
        ("a.txt.gz", gzip.compress(b"text " * 99, mtime=0)[:-12], "a.txt.gz: is not a whole gzip file"),
        (
            "a.txt.gz",
            gzip.compress(b"text", mtime=0)[:12] + b"\xff\xff\xff\xff\xff",
            "a.txt.gz: is not a whole gzip file",
        ),
        ("a.txt.gz", gzip.compress(b"caf\xe9 ", mtime=0), "is not UTF-8 text: byte 3"),
    ],
)
def test_text_that_can_not_be_used_is_named_in_one_line(tmp_path, name, data, words):
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(af.DataError, match=words) as caught:
        read_text(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_of_standard_input_that_is_empty_says_so(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(af.DataError, match="standard input: is empty"):
        read_text("-")


def test_text_of_a_missing_file_a_directory_or_an_impossible_name_says_so(tmp_path):
    with pytest.raises(af.DataError, match=r"nowhere.txt: there is no such file"):
        read_text(tmp_path / "nowhere.txt")
    with pytest.raises(af.DataError, match="is a directory; give the text files in it"):
        read_text(tmp_path)
    with pytest.raises(af.DataError, match="can't be read"):
        read_text("a\x00b")
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(af.DataError, match="can't be read: Not a directory"):
        read_text(file / "below")


def test_text_that_may_not_be_read_says_so(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("x")

    def refuse(self, mode):
        raise PermissionError(13, "Permission denied", str(self))

    # A superuser may read everything, so the refusal is made.
    monkeypatch.setattr(type(file), "open", refuse)
    with pytest.raises(af.DataError, match=r"a.txt: can't be read: Permission denied"):
        read_text(file)
