"""Making shards of a text, against what the tokenizers library alone takes for the ids of the same documents.

    python bench/shards.py TEXT [--copies 3] [--rounds 5] [--vocab 8192] [--start REGEX]

Both in one process on all cores, in turns that rotate; the best round of each counts. The library is given the documents in memory
and makes lists of ids (encode_batch_fast, all at once and in batches: the better counts), with a tokenizer that is read
from its file beforehand, so that its cache of words is empty. anyformer begins with the files of text and tokenizer
and ends with the finished folder: hashing, the survey, cutting into documents, encoding, writing, syncing and the index.
Seconds of all cores together (CPU) are given too: on a busy machine they are the steadier figure. The limit is 0.9.
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from anyformer.data.corpus import RawFile
from anyformer.data.scan import Plan
from anyformer.data.shards import open_examples
from anyformer.data.sources.text import Text
from anyformer.data.tokenizer import tokenizer, train_bpe
from anyformer.data.tokenizing import tokenize

LIMIT = 0.9
BATCH = 64


def timed(act, folder):
    # A tokenizer keeps the words that it has seen: everybody begins with one that has seen none.
    inner = tokenizer(folder).inner
    wall, cpu = time.perf_counter(), time.process_time()
    act(inner)
    return time.perf_counter() - wall, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--start", default="^ = [^=]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "text.txt"
        place.write_text("".join(RawFile(given.text).lines()) * given.copies, encoding="utf-8", newline="")
        text = Text(split="start", start=given.start) if given.start else Text()
        file = RawFile(place)
        documents, begun = [], False
        for record in text.read(file.lines(), file.name):
            if begun:
                documents[-1] += record.fields["text"]
            else:
                documents.append(record.fields["text"])
            begun = record.more
        made = train_bpe(documents[: len(documents) // given.copies], given.vocab)
        made.save(Path(folder) / "made")
        plan = Plan(
            out=Path(folder) / "out", files={"train": (file,)}, format=text, tokenizer=Path(folder) / "made"
        )  # fmt: skip

        def at_once(inner):
            return [one.ids for one in inner.encode_batch_fast(documents, add_special_tokens=False)]

        def in_batches(inner):
            parts = [documents[i : i + BATCH] for i in range(0, len(documents), BATCH)]
            return [one.ids for part in parts for one in inner.encode_batch_fast(part, add_special_tokens=False)]

        def ours(_):
            shutil.rmtree(plan.out, ignore_errors=True)
            return tokenize(plan)[0]

        acts = [at_once, in_batches, ours]
        times = {act: [] for act in acts}
        for _ in range(given.rounds):
            for act in acts:
                times[act].append(timed(act, Path(folder) / "made"))
            # Another one is first in the next round: nobody always comes after the same.
            acts.append(acts.pop(0))
        ids = at_once(tokenizer(Path(folder) / "made").inner)
        examples = open_examples(plan.out, "train")
        for i, wanted in enumerate(ids):
            if examples.read("tokens", i).tolist() != wanted:
                raise SystemExit(f"document {i} has other tokens")
        size = sum(len(document.encode()) for document in documents) / 1e6
        best = {act.__name__: (min(w for w, _ in kept), min(c for _, c in kept)) for act, kept in times.items()}
        print(f"{size:.1f} MB, {len(documents)} documents, {sum(map(len, ids)):,} tokens, all equal")
        for name, (wall, cpu) in best.items():
            print(f"{name:10}  {wall:7.3f} s  {size / wall:7.2f} MB/s  CPU {cpu:7.3f} s")
        by_time, by_cpu = (min(best["at_once"][i], best["in_batches"][i]) / best["ours"][i] for i in (0, 1))
        verdict = "within" if by_time >= LIMIT else "below"
        print(f"{by_time:.3f}x of the library's speed ({by_cpu:.3f}x by CPU), {verdict} the limit of {LIMIT}")


if __name__ == "__main__":
    main()
