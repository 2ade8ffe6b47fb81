"""The data of a study that has none of its own: Python's standard library, or a text file, as a folder of tokens."""

import re
import sysconfig
from collections.abc import Mapping
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path

from anyformer.data.corpus import STDIN, RawFile, find_files, format_named, guess_format, standard_library
from anyformer.data.scan import Plan, Progress
from anyformer.data.tokenizer_training import Training
from anyformer.data.tokenizing import tokenize
from anyformer.errors import InputError
from anyformer.lab.quickstart_plan import SPEC

HELD_OUT = Fraction(1, 10)
"""The share of a text that is held out; of the standard library, whole files are."""
DIGEST = 8
"""Letters of a text's hash in the name of its folder: another text, or another Python, has another folder."""


def text_folder(
    parent: Path,
    text: str | None = None,
    *,
    vocab: int = SPEC["vocab"],
    progress: Progress = lambda _: nullcontext(lambda done, total: None),
) -> Path:
    """A folder of tokens of a text (None: the standard library) below `parent`, made if it is not there yet.

    The rules are those of `anyformer tokenize TEXT --train bpe --vocab 3072 --hold-out 0.1`.
    """
    plan = _library_plan(parent, vocab) if text is None else _text_plan(parent, text, vocab)
    tokenize(plan, progress)
    return plan.out


def _library_plan(parent: Path, vocab: int) -> Plan:
    corpus, root = standard_library(), Path(sysconfig.get_path("stdlib"))
    parts = {"train": corpus.train, "valid": corpus.held_out}
    files = {part: tuple(RawFile(root / each.name) for each in some) for part, some in parts.items()}
    return _plan(parent, f"standard-library-{corpus.fingerprint()[:DIGEST]}", files, vocab, Fraction(0))


def _text_plan(parent: Path, text: str, vocab: int) -> Plan:
    if text == STDIN or Path(text).is_dir():
        raise InputError(f"--text: {text} is no file, and a study reads its text more than once; give a file")
    (file,) = find_files([text])
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", file.name.split(".")[0]).strip("-.") or "text"
    return _plan(parent, f"{slug}-{file.sha256()[1][:DIGEST]}", {"train": (file,)}, vocab, HELD_OUT)


def _plan(parent: Path, name: str, files: Mapping[str, tuple[RawFile, ...]], vocab: int, hold_out: Fraction) -> Plan:
    kind = format_named(guess_format(file for some in files.values() for file in some))
    training = Training(kind="bpe", vocab=vocab)
    return Plan(out=parent / f"{name}-{vocab}", files=files, format=kind(), training=training, hold_out=hold_out)
