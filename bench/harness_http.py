"""The lm-evaluation-harness over HTTP (its `local-completions`) and through our adapter in process, on one folder after another.

    python bench/harness_http.py [FOLDER ...]

Needs `pip install "lm-eval[api]"` and transformers. Without folders: small random Llamas with a tokenizer of every kind,
with and without a bos of their own. All tasks are local, in fp32 on a CPU. Over HTTP each is asked one request at a time
and eight at once; with --batch-invariant both give the same bits. The client's own tokenizer is the server's; where that
puts something around a text, both sides read the ids of our adapter, as the client does not know about it. Answers may
differ in the blank before the first word, which our adapter leaves out.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from anyformer.data.tokenizer import tokenizer
from anyformer.families.io import spec_of
from tests.evals.lm_eval_peer import kinds, write_model
from tests.serve.harness_http import compare

ACC, BITS = "local_choice acc,none", "local_rolling bits_per_byte,none"


def adds_more(folder: Path) -> bool:
    """Whether the folder's tokenizer puts something of its own around a text."""
    words = tokenizer(folder)
    return words.text_ids("a") != words.text_ids("a", specials=False)


def prefix_of(folder: Path) -> int | None:
    """What is read where there is no text before, if the tokenizer's files name nothing."""
    words = tokenizer(folder)
    named = [words.id_named(name) for name in ("bos_token", "eos_token")]
    return spec_of(folder).ids.bos if named == [None, None] else None


def main() -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    # The windows of the harness have one token more over HTTP than the model is made for.
    warnings.filterwarnings("ignore", message=".*what it says after that may be poor")
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        folders = [(name, Path(name)) for name in sys.argv[1:]]
        if not folders:
            made_up = enumerate(kinds().items())
            folders = [(name, write_model(place / str(i), *kind)) for i, (name, kind) in made_up]
        rows = []
        for i, (name, folder) in enumerate(folders):
            for invariant in (True, False):
                how = {"own_ids": adds_more(folder), "prefix": prefix_of(folder)}
                found = compare(folder, place / f"tasks-{i}-{invariant}", batch_invariant=invariant, beyond=1, **how)
                http, ours, alone = found.many, found.ours, found.alone
                same = sum(a == b for a, b in zip(http.nats, found.single.nats, strict=True))
                said = sum(
                    a.removeprefix(" ") == b.removeprefix(" ") for a, b in zip(http.answers, ours.answers, strict=True)
                )
                rows.append(
                    (
                        name, "yes" if invariant else "no", f"{same} of {len(http.nats)}", f"{http.figures[ACC] - ours.figures[ACC]:g}",
                        f"{abs(http.figures[BITS] - ours.figures[BITS]):.1e}", f"{abs(http.figures[BITS] - alone.figures[BITS]):.1e}",
                        f"{http.furthest(ours):.1e}", str(http.greedy == ours.greedy), f"{said} of {len(http.answers)}",
                    )
                )  # fmt: skip
                print(rows[-1], file=sys.stderr, flush=True)
        head = (
            "tokenizer", "batch-invariant", "equal bits, 1 and 8 at once", "accuracy, HTTP - in process", "bits per byte, |difference|",
            "the same, each text alone", "furthest log-likelihood", "greedy alike", "equal answers",
        )  # fmt: skip
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for row in rows:
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
