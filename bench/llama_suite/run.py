"""llama.cpp's own server tests against `anyformer serve`: which pass, and why the others don't.

    python bench/llama_suite/run.py CHECKOUT --model FOLDER [--python PYTHON] [--report FILE] [PYTEST ARGUMENT ...]

CHECKOUT is a copy of llama.cpp, of which only tools/server/tests and models/templates are read; it is copied to a
temporary folder, and nothing of it is kept. FOLDER is stories260K as a Hugging Face directory; --python has what the tests
need (pytest, requests, openai, wget, aiohttp, numpy), by default our own. Tests that need another model are counted as
such; for those of embeddings, of which none looks at values, a small encoder with random weights is made.
"""

import argparse
import collections
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.llama_suite.llama_server import DECODER, ENCODER, FORKS, MARK, SCRATCH
from bench.llama_suite.plugin import RESULTS

HERE = Path(__file__).parent
KNOWN = {
    "match_regex(": "another random generator draws another text",
    "gaierror": "a file of theirs that can't be fetched",
    "__verbose": "no debugging output in answers",
    "llamacpp:": "metrics have vLLM's names",
    "Process-Start-Time-Unix": "metrics have vLLM's names",
}
"""Signs of a failure, and what they mean."""
TESTS, TEMPLATES = Path("tools/server/tests"), Path("models/templates")


def decoder(folder: Path, made: Path) -> Path:
    """The model with a tokenizer that begins texts with bos, as llama.cpp's file of the same model says."""
    shutil.copytree(folder, made)
    place = made / "tokenizer.json"
    place.chmod(0o644)
    said = json.loads(place.read_text(encoding="utf-8"))
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    said["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, first], "pair": [bos, first, second],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }  # fmt: skip
    place.write_text(json.dumps(said), encoding="utf-8")
    return made


def encoder(words: list[str], made: Path) -> Path:
    """An encoder with random weights, and a vocabulary of whole words."""
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

    import anyformer as af

    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=8000, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    inner.train_from_iterator(words, trainer)
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    spec = {
        "topology": "encoder", "vocab": inner.get_vocab_size(), "width": 64, "depth": 2, "context": 512, "ids": {"pad": 0},
        "attention": {"heads": 4}, "position": {"kind": "learned"}, "head": {"kind": "none"},
    }  # fmt: skip
    af.save(af.build(af.spec(spec)).eval(), made)
    inner.save(str(made / "tokenizer.json"))
    return made


def run(given: argparse.Namespace) -> list[dict]:
    """How each case ended."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for part in (TESTS, TEMPLATES):
            if (given.checkout / part).is_dir():
                shutil.copytree(given.checkout / part, root / part)
        tests = root / TESTS
        (tests / "tmp").mkdir(exist_ok=True)
        shim = root / "llama-server"
        shim.write_text(
            f'#!/bin/sh\nPYTHONPATH="{HERE.parents[1]}" exec "{sys.executable}" "{HERE}/llama_server.py" "$@"\n'
        )
        shim.chmod(0o755)
        words = [place.read_text(encoding="utf-8") for place in sorted(tests.rglob("*.py"))]
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        results = root / "results"
        env = os.environ | {
            "LLAMA_SERVER_BIN_PATH": str(shim), "PORT": str(port), SCRATCH: scratch, RESULTS: str(results),
            DECODER: str(decoder(given.model, root / "stories260K")), ENCODER: str(encoder(words, root / "encoder")),
            "PYTHONPATH": str(HERE.parents[1]),
        }  # fmt: skip
        door = root / "forks"
        env[FORKS] = str(door)
        forks = subprocess.Popen(
            [sys.executable, str(HERE / "forks.py"), str(door)], env=env | {"OMP_NUM_THREADS": "1"}
        )
        while not door.exists() and forks.poll() is None:
            time.sleep(0.05)
        command = [given.python, "-m", "pytest", "-q", "-m", "not slow", "-p", "bench.llama_suite.plugin", *given.more]
        try:
            subprocess.run(command, cwd=tests, env=env, stdout=sys.stderr, check=False)
        finally:
            with forks:
                forks.terminate()
        lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
    cases = [json.loads(line) for line in lines]
    # A test that wants a server not to start is not passed by one that knows nothing of what it is about.
    return [case | {"outcome": "failed"} if MARK in case["printed"] else case for case in cases]


def reason(case: dict) -> str:
    """Why a case did not pass, in a few words."""
    found = re.findall(rf"{MARK} (.*)", case["printed"])
    if found:
        return found[-1]
    last = [line[1:].strip() for line in case["said"].splitlines() if line.startswith("E ")]
    words = last[0] if last else case["said"][-200:].strip()
    for mark, why in KNOWN.items():
        if mark in case["said"]:
            return why
    # What the server said of the last request that it refused says more than the status that was expected.
    raised = re.search(r"""'message': (["'])(.*?)\1""", words)
    refused = re.findall(r'"message": "(.*?)"[,\n]', case["printed"]) if "400" in words else []
    said = raised[2] if raised else refused[-1] if refused else words
    return re.sub(r"/tmp\S*|\d{4,}", "...", said)[:120].replace("|", "\\|")


def report(cases: list[dict]) -> str:
    """The table."""
    files: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case in cases:
        files[case["name"].split("::")[0].removeprefix("unit/")][case["outcome"]] += 1
    total = collections.Counter(case["outcome"] for case in cases)
    lines = ["| file | passed | failed | skipped |", "|---|---|---|---|"]
    lines += [f"| {name} | {c['passed']} | {c['failed']} | {c['skipped']} |" for name, c in sorted(files.items())]
    lines += [f"| all | {total['passed']} | {total['failed']} | {total['skipped']} |", ""]
    reasons = collections.Counter(reason(case) for case in cases if case["outcome"] == "failed")
    lines += ["| why not | cases |", "|---|---|", *(f"| {why} | {count} |" for why, count in reasons.most_common())]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--report", type=Path, help="where the table is written too")
    parser.add_argument("--cases", type=Path, help="where every case is written, as lines of JSON")
    given, given.more = parser.parse_known_args()
    cases = run(given)
    if given.cases is not None:
        given.cases.write_text("".join(json.dumps(case) + "\n" for case in cases), encoding="utf-8")
    text = report(cases)
    print(text)
    if given.report is not None:
        given.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
