"""The lm-evaluation-harness through our adapter and through its own for transformers, on one folder after another.

    python bench/harness.py [FOLDER ...]

Needs `pip install "anyformer[harness]"` and transformers. Without folders: small random Llamas with a tokenizer of every
kind, with and without a bos of their own. All tasks are local, in fp32 on a CPU.
"""

import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.evals.lm_eval_peer import compare, kinds, write_model, write_tasks


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        tasks = write_tasks(place / "tasks")
        folders = [(name, Path(name)) for name in sys.argv[1:]]
        if not folders:
            made_up = enumerate(kinds().items())
            folders = [(name, write_model(place / str(i), *kind)) for i, (name, kind) in made_up]
        rows = []
        for name, folder in folders:
            found = compare(folder, tasks)
            acc = " ".join(f"{value:.4f}" for value in found.figures["local_choice acc,none"])
            equal = sum(a == b for a, b in found.answers)
            rows.append((name, acc, f"{found.furthest:.1e}", str(len(found.nats)), f"{equal} of {len(found.answers)}"))
        print(
            "| tokenizer | accuracy, theirs and ours | furthest log-likelihood | of | equal answers |\n|---|---|---|---|---|"
        )
        for row in rows:
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
