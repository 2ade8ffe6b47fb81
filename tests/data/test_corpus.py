"""Corpora: what is learned from, what is held out, and the yardsticks."""

import gzip
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from anyformer.data.corpus import Document, gzip_bits_per_byte, standard_library, text_corpus, unigram_nats
from anyformer.errors import DataError


@pytest.fixture(scope="module")
def library():
    return standard_library()


def test_library_is_real_sorted_and_without_tests(library):
    root = Path(sysconfig.get_path("stdlib"))
    names = [d.name for d in library.train]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py"} <= {*names, *(d.name for d in library.held_out)}
    assert not [n for n in names if {"test", "tests", "site-packages"} & set(n.split("/")[:-1])]
    sample = library.train[len(names) // 2]
    assert (root / sample.name).read_bytes() == sample.text.encode()
    assert 5e6 < library.train_bytes < 5e7


def test_library_split_holds_out_about_a_twentieth_and_shares_no_file(library):
    assert not {d.name for d in library.train} & {d.name for d in library.held_out}
    assert 0.02 < library.held_out_bytes / library.train_bytes < 0.12


def test_fingerprint_changes_with_text_name_and_split(tmp_path):
    file = tmp_path / "a.txt"
    seen = set()
    for text in ("abcdefghij" * 20, "abcdefghij" * 20 + "k"):
        file.write_text(text)
        seen.add(text_corpus(file).fingerprint())
        assert text_corpus(file).fingerprint() in seen
    (tmp_path / "b.txt").write_text("abcdefghij" * 20)
    assert text_corpus(tmp_path / "b.txt").fingerprint() not in seen
    assert len(seen) == 2


def test_text_of_one_document_is_cut_at_nine_tenths(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("".join(chr(97 + i % 26) for i in range(1000)))
    corpus = text_corpus(file)
    assert [len(d.text) for d in (*corpus.train, *corpus.held_out)] == [900, 100]


def test_text_with_separators_is_cut_between_documents(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("\n<|endoftext|>\n".join(f"story {i} " * 10 for i in range(20)))
    corpus = text_corpus(file)
    assert [len(corpus.train), len(corpus.held_out)] == [18, 2]
    assert corpus.held_out[-1].text == "story 19 " * 10


def test_text_of_two_documents_keeps_one_on_each_side(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("short\n<|endoftext|>\n" + "long " * 100)
    corpus = text_corpus(file)
    assert [d.text[:5] for d in (*corpus.train, *corpus.held_out)] == ["short", "long "]


def test_text_that_mentions_the_separator_is_not_cut_there(tmp_path):
    file = tmp_path / "t.py"
    file.write_text("END = '<|endoftext|>'\n" * 50)
    assert len(text_corpus(file).train) == 1


def test_text_of_separators_alone_is_refused(tmp_path):
    file = tmp_path / "t.txt"
    file.write_text("<|endoftext|>\n<|endoftext|>")
    with pytest.raises(DataError, match="no document between"):
        text_corpus(file)


def test_gzip_yardstick_is_what_the_program_gives(library, tmp_path):
    file = tmp_path / "all"
    file.write_bytes(b"".join(d.text.encode() for d in library.held_out))
    packed = subprocess.run(["gzip", "-9", "-n", "-c", file], capture_output=True, check=True).stdout
    assert gzip.decompress(packed) == file.read_bytes()
    ours = gzip_bits_per_byte(library.held_out)
    # The program and Python's zlib may differ by a few bytes.
    assert ours == pytest.approx(8 * len(packed) / file.stat().st_size, rel=2e-3)


def test_gzip_yardstick_counts_bytes_not_characters():
    (only,) = [Document(name="a", text="\u00e9" * 1000)]
    assert gzip_bits_per_byte([only]) == len(gzip.compress(("\u00e9" * 1000).encode(), 9, mtime=0)) * 8 / 2000


def test_unigram_of_an_even_text_needs_the_logarithm_of_the_vocabulary():
    nats = unigram_nats([0, 1, 2, 3] * 50, [3, 2, 1], vocab=4)
    assert nats == pytest.approx(3 * np.log(4))


def test_unigram_gives_a_token_that_never_occurred_a_chance():
    assert unigram_nats([0, 0, 0], [1], vocab=2) == pytest.approx(np.log(5))
