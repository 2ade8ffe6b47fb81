"""Write docs/parity.md from what the parity tests find.

The tests themselves are run, case by case, with their comparison replaced by one that also notes the figure. It takes
about a minute; a case that fails is named on the page and by the exit status.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent / "parity.md"
HEAD = """# Parity with the published implementations

Every family is held against its public class of transformers {version} in eval mode, for the class's small config
(`tiny`) and for every switch that a published config may turn. Both sides get random weights in every tensor, biases and gains too, and
compute in fp64, with the class's own fp32 lifted; a difference is max|a - b| / max|b| of the logits, and the tests allow
{limit:g}. Sequences are longer than every window, chunk and trained length of the small config.

- **whole**: a batch of two rows, at once.
- **padded**: one row shorter than the other, real tokens only.
- **cached**: fed in two parts with our cache, against the class without one.
- **round trip**: tensors and config there and back, equal to the last bit, also through two shards that the class
  loads itself.

Beside this table, every case is compared as a user would: `from_pretrained` of the folder against `af.load` of it, both
in fp32, with nothing else set (`tests/families/test_as_loaded.py`). What the fp64 tests set on the reference beyond that:

- what a class computes in fp32 whatever its weights are (norms, softmax, angles) is lifted to fp64;
- the tables of sines that Marian and RoFormer round to fp32 hold the fp64 numbers of the same formula;
- Gemma 2 runs eager attention, the one that caps its scores; FSMT reads a whole target with `use_cache=False`, since its
  decoder masks nothing when it keeps a cache;
- T5, mT5 and UMT5 get a head of their own where the config says so: the class ties every one that it makes anew, though
  it leaves those that it loads as they are.

`anyformer verify parity` compares with the class as `from_pretrained` gives it, and prints that fp32 was lifted.

Where the public class computes something surprising, a loaded model does the same:

- **BigBird** draws its random blocks in training only. In eval mode the first block stands in for each of them and
  counts several times. Both modes are compared. Not followed: the class cuts rows into blocks, padding included; stays
  with full attention after one short row; fails beyond 5 blocks if none is drawn; and at 1,024 tokens in training may
  count a block twice.
- **UMT5** divides the decoder's output by the root of the width, whether its head is tied or not.
- **T5's buckets**: the class rounds in fp32 where a distance lies between two buckets, and so do we; lifted to fp64, the
  reference may put such a distance (16 of 18 buckets up to 128) into the next one.
- **Sine tables** that Marian, FSMT and RoFormer store are read by their classes; a file whose table is not the formula is
  refused. No class reads any other tensor that is left out here (`tests/families/test_left_out.py`): `inv_freq`, causal
  masks and `masked_bias`, `position_ids` and `token_type_ids`, GPT-J's `embed_positions`, Reformer's mask values,
  poolers, the next-sentence head, ViT's mask token, the second of two biases of an untied masked-LM head, and the bias
  of T5's first cross-attention.

A dash means that the case does not apply: an encoder has no cache, and where angles depend on the length the public
classes take that of the longest row. To check a checkpoint of your own, layer by layer:

    anyformer verify parity path/to/checkpoint

This page is written by `python docs/make.py parity`.

{families} families, {cases} cases; the largest difference is {worst}.

| family | public class | variant | whole | padded | cached | round trip |
|---|---|---|---|---|---|---|
"""
HEADS = """
{mark}

{classes} classes of {families} families that end with one of the words below, each with the family's small config and three
named labels: the largest difference of the answers (starts and ends of an answer), of whole rows and of rows padded on either
side, after labels and tensors went there and back, equal to the last bit. Where a class reads the first place of a row
whatever stands there, its rows are padded on the right only; where it reads the last place so, not at all. Not read:
{unread}

Where the public classes go by something else than the mask: those that read the last token of a decoder take the last one
that is not the padding's id, so a text that ends with that id is read one token earlier there; MBart's and PLBart's decoders
are fed the last token of a row first, where others are fed `decoder_start_token_id`.

| family | {ends} |
|---|{lines}
"""
MARK = "## Classes with other heads"
COLUMNS = {
    "whole": ("test_logits_of_a_whole_sequence_equal_the_published",),
    "padded": ("test_logits_of_padded_rows_equal_the_published",),
    "cached": ("test_logits_fed_in_two_parts_with_a_cache_equal_the_published",),
    "round trip": (
        "test_export_gives_the_published_tensors_bit_for_bit",
        "test_config_written_from_a_spec_reads_back_equal",
        "test_saved_in_two_shards_loads_here_and_in_the_public_library",
    ),
}
"""Column -> the tests that stand behind it."""


def key(kind: str, architecture: str, variant: str) -> str:
    """The beginning of a row, by which a test finds it."""
    return f"| {kind} | {architecture} | {variant} |"


def results(report: Callable[[str], object]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Kind, public class, variant, and for each column a figure, True, None (does not apply) or an exception."""
    from tests.families.cases import cases
    from tests.families.test_parity import Case

    for kind, variant in cases():
        report(f"{kind} {variant}")
        with tempfile.TemporaryDirectory() as place:
            try:
                case = Case(kind, variant, Path(place))
            except Exception as error:
                yield kind, "", variant, dict.fromkeys(COLUMNS, error)
                continue
            found = {column: outcome(case, names) for column, names in COLUMNS.items()}
            yield kind, case.family.architectures[0], variant, found


def head_results(report: Callable[[str], object]) -> Iterator[tuple[str, str, Any]]:
    """Kind, class, and its figure or an exception, of every class with another head."""
    from tests.families import test_tasks

    tests = (
        "test_answers_equal_the_published_whole_and_padded",
        "test_labels_and_tensors_come_over_and_go_back_the_same",
    )
    for kind, name in test_tasks.cases():
        report(name)
        with tempfile.TemporaryDirectory() as place:
            try:
                case = test_tasks.Case(kind, name, Path(place))
            except Exception as error:
                yield kind, name, error
                continue
            yield kind, name, outcome(case, tests, test_tasks)


def heads_page(results: list[tuple[str, str, Any]]) -> str:
    """The part of the page about them, a row for each family."""
    from anyformer.families.tasks import ANSWER, CHOICE, SEQUENCE, TOKEN
    from tests.families.test_tasks import UNREAD

    ends = (SEQUENCE, TOKEN, ANSWER, CHOICE)
    rows: dict[str, list[str]] = {}
    for kind, name, found in results:
        cells = rows.setdefault(kind, ["-"] * len(ends))
        cells[next(i for i, end in enumerate(ends) if name.endswith(end))] = shown(found)
    unread = "; ".join(f"{name} ({why})" for name, why in UNREAD.items())
    text = HEADS.format(
        mark=MARK, classes=len(results), families=len(rows), unread=f"{unread}.", ends=" | ".join(ends), lines="---|" * len(ends)
    )  # fmt: skip
    return text + "".join(f"| {kind} | {' | '.join(cells)} |\n" for kind, cells in rows.items())


def outcome(case: Any, names: tuple[str, ...], module: Any = None) -> Any:
    """The largest difference that some tests of a case noted, or True if they compare bits."""
    import pytest

    from tests.families import test_parity

    tests, which = module or test_parity, getattr(case, "variant", None) or case.name
    with noted(tests) as figures, tempfile.TemporaryDirectory() as scratch:
        for name in names:
            given = {"tmp_path": Path(scratch)} if "shards" in name or "labels" in name else {}
            try:
                getattr(tests, name)(lambda *_: case, case.family.kind, which, **given)
            except pytest.skip.Exception:
                return None
            except Exception as error:
                return error
        return max(figures) if figures else True


@contextmanager
def noted(module: Any) -> Iterator[list[float]]:
    """Let the comparisons of a test module note what they find."""
    from tests.tolerances import difference

    figures: list[float] = []
    check = module.assert_close

    def watch(row: str, a: Any, b: Any) -> None:
        figures.append(difference(a, b))
        check(row, a, b)

    module.assert_close = watch
    try:
        yield figures
    finally:
        module.assert_close = check


def shown(found: Any) -> str:
    """A cell."""
    if found is None:
        return "-"
    if isinstance(found, Exception):
        return "**fails**"
    return "exact" if found is True else "0" if found == 0 else f"{found:.0e}"


def main() -> int:
    """Write the page; 1 if a case fails."""
    import torch
    import transformers

    from tests.tolerances import TABLE

    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows, figures, failed, kinds = list[str](), list[float](), list[str](), set[str]()
    for kind, architecture, variant, found in results(lambda line: sys.stderr.write(f"\r{line:60}")):
        kinds.add(kind)
        rows.append(f"{key(kind, architecture, variant)} {' | '.join(shown(found[column]) for column in COLUMNS)} |")
        figures += [value for value in found.values() if isinstance(value, float)]
        failed += [f"{kind} {variant}, {c}: {v!r:.300}" for c, v in found.items() if isinstance(v, Exception)]
    heads = list(head_results(lambda line: sys.stderr.write(f"\r{line:60}")))
    figures += [found for _, _, found in heads if isinstance(found, float)]
    failed += [f"{name}: {found!r:.300}" for _, name, found in heads if isinstance(found, Exception)]
    head = HEAD.format(
        version=transformers.__version__, limit=TABLE["oracle"].limit, families=len(kinds), cases=len(rows),
        worst=f"{max(figures):.0e}",
    )  # fmt: skip
    PAGE.write_text(head + "\n".join(rows) + "\n" + heads_page(heads), encoding="utf-8")
    sys.stderr.write("\n" + "".join(f"{line}\n" for line in failed))
    return 1 if failed else 0
