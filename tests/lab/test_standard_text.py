"""Data of a study that has none of its own."""

import pytest

from anyformer.data.shards import open_index
from anyformer.data.tokenizer import tokenizer
from anyformer.errors import AnyformerError
from anyformer.lab.standard_text import text_folder


def test_text_folder_of_the_library_holds_out_whole_files_and_is_made_once(tmp_path, monkeypatch):
    library = tmp_path / "lib"
    library.mkdir()
    for i in range(80):
        (library / f"module_{i}.py").write_text(f"def answer_{i}(question):\n    return question + {i}\n" * 4)
    (library / "tests").mkdir()
    (library / "tests" / "ignored.py").write_text("assert 1\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(library))
    place = text_folder(tmp_path / "data", vocab=300)
    assert place.parent == tmp_path / "data"
    index = open_index(place)
    assert index.parts["train"].examples + index.parts["valid"].examples == 80
    assert index.parts["valid"].examples > 0
    assert 256 < index.vocab <= 300
    made = (place / "index.json").stat().st_mtime_ns
    assert text_folder(tmp_path / "data", vocab=300) == place
    assert (place / "index.json").stat().st_mtime_ns == made
    # Another text has another folder: nothing is mixed up.
    (library / "module_0.py").write_text("changed = 1\n")
    assert text_folder(tmp_path / "data", vocab=300) != place


def test_text_folder_of_a_file_holds_out_its_last_tenth(tmp_path):
    text = "".join(f"{i} of a thousand lines\n" for i in range(1000))
    (tmp_path / "my lines.txt").write_text(text)
    place = text_folder(tmp_path, str(tmp_path / "my lines.txt"))
    assert place.name.startswith("my-lines-")
    index = open_index(place)
    assert index.parts["valid"].bytes == pytest.approx(len(text) / 10, abs=2)
    assert tokenizer(place).decode(tokenizer(place).encode("7 of a")) == "7 of a"


@pytest.mark.parametrize("text", ["-", "missing.txt", "."])
def test_text_folder_of_what_is_no_file_is_refused(tmp_path, text):
    with pytest.raises(AnyformerError, match=r"is no file|there is no such file"):
        text_folder(tmp_path, text)
