"""The lm-evaluation-harness on one folder twice: through our adapter, and through its own for transformers (HFLM)."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import tokenizers
import torch
import transformers

from tests.data.published import NAMES, around, byte_level, sentence_pieces, unigram, word_pieces

CONTEXT = 64
QUESTIONS = [
    ("The cat sat on", ["the mat.", "the dog!", "a bird", "1984"]), ("Once upon a time ", ["there was", "they sleep", "12  345"]),
    ("", ["The cat", "the lazy dog sleeps on.", " a blank"]), ("In 1984 there were\n\n", ["cats", "6,789 birds", "\nx"]),
    ("the quick brown fox " * 12, ["jumps", "sleeps over the dog"]), ("a</s> b<|endoftext|>c [SEP] d", [" the", " fox, and"]),
    ("<s>Once", [" upon", " the cat"]), ("na\u00efve caf\u00e9", [" \u00c9cole", " \u6f22\u5b57"]), ("x", ["y", "z"]),
]  # fmt: skip
"""Contexts and choices: blanks at the end, none at all, longer than a model reads, special tokens that are spelled out."""
DOCUMENTS = [
    "The cat sat on the mat, and the dog sat on the cat!", "Once upon a time there was a little cat. " * 5, " x",
    "In 1984 there were 12 cats;  they didn't see 6,789 birds.\n\n", "<s>The lazy dog</s> sleeps on.",
]  # fmt: skip
PROMPTS = ["The cat sat", "Once upon a time there", "In 1984 ", "the quick brown fox " * 12, "def f(self):\n"]
TASKS = {
    "local_choice": """
task: local_choice
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: 0
target_delimiter: " "
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "local_rolling": """
task: local_rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
""",
    "local_answer": """
task: local_answer
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n", " zzz"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
"""Tasks over local files, one of each kind of request."""


def write_tasks(place: Path) -> Path:
    """Tasks and their documents."""
    place.mkdir(parents=True, exist_ok=True)
    rows = {
        "local_choice": [{"question": question, "choices": choices} for question, choices in QUESTIONS],
        "local_rolling": [{"text": text} for text in DOCUMENTS],
        "local_answer": [{"question": text, "answer": "x"} for text in PROMPTS],
    }
    for name, written in TASKS.items():
        data = place / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows[name]))
        held = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        (place / f"{name}.yaml").write_text(written + held)
    return place


@cache
def kinds() -> dict[str, tuple[tokenizers.Tokenizer, dict[str, Any]]]:
    """Tokenizers of every kind, with and without something of their own before or after a text."""
    end = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    llama = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    pieces = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    words = {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return {
        "byte-level BPE": (byte_level(NAMES["gpt2"]), end | plain),
        "byte-level BPE, bos": (around(byte_level(("<s>", "</s>")), "<s> $A"), named | plain),
        "sentencepiece BPE": (sentence_pieces(NAMES["llama"]), llama | plain),
        "sentencepiece BPE, bos": (around(sentence_pieces(NAMES["llama"]), "<s> $A"), llama | {"tokenizer_class": "LlamaTokenizer"}),
        "Unigram": (unigram(NAMES["xlmr"]), pieces | plain),
        "Unigram, bos": (around(unigram(NAMES["xlmr"]), "<s> $A"), pieces | plain),
        "Unigram, bos and eos": (unigram(NAMES["xlmr"]), pieces | {"tokenizer_class": "XLMRobertaTokenizer"}),
        "WordPiece": (word_pieces(NAMES["bert"]), words | plain),
        "WordPiece, bos": (around(word_pieces(NAMES["bert"]), "[CLS] $A"), words | plain),
        "WordPiece, bos and eos": (word_pieces(NAMES["bert"]), words | {"tokenizer_class": "BertTokenizer"}),
        "no names": (byte_level(("</s>",)), {"eos_token": "</s>"} | plain),
    }  # fmt: skip


def write_model(place: Path, inner: tokenizers.Tokenizer, settings: dict[str, Any], *, seed: int = 0) -> Path:
    """A folder with a small random Llama whose config.json names a bos, whatever its tokenizer adds."""
    torch.manual_seed(seed)
    ids = [inner.token_to_id(settings[name]) if name in settings else None for name in ("bos_token", "eos_token")]
    config = transformers.LlamaConfig(
        vocab_size=inner.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=CONTEXT, initializer_range=0.1,
        bos_token_id=3 if ids[0] is None else ids[0], eos_token_id=ids[1],
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(place)
    inner.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Both adapters on the same requests."""

    figures: dict[str, tuple[float, float]]
    """Every metric of every task: theirs, ours."""
    nats: list[tuple[float, float]]
    """Every log-likelihood."""
    greedy: list[tuple[bool, bool]]
    answers: list[tuple[str, str]]

    @property
    def furthest(self) -> float:
        """The largest difference of log-likelihoods."""
        return max(abs(theirs - ours) for theirs, ours in self.nats)


def their_class() -> Any:
    """HFLM. Its module wants accelerate, which spreads a model over devices; here one is given that is on the CPU."""
    try:
        return importlib.import_module("lm_eval.models.huggingface").HFLM
    except ModuleNotFoundError as error:
        if error.name != "accelerate":
            raise
    names = dict.fromkeys(("Accelerator", "InitProcessGroupKwargs", "find_executable_batch_size", "get_max_memory"))
    stands_in: Any = ModuleType("accelerate")
    stands_in.__dict__.update(names)
    sys.modules["accelerate"] = sys.modules["accelerate.utils"] = stands_in
    try:
        return importlib.import_module("lm_eval.models.huggingface").HFLM
    finally:
        del sys.modules["accelerate"], sys.modules["accelerate.utils"]


def compare(folder: Path, tasks: Path, *, prefix: int | None = None) -> Compared:
    """Both adapters on the local tasks, in fp32 on a CPU.

    With `prefix` only on those that ask for log-likelihoods: HFLM generates with no tokenizer that names no eos.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    from anyformer.evals.lm_eval import lm_eval_model

    public = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    models = (
        their_class()(pretrained=public, batch_size=1, prefix_token_id=prefix),
        lm_eval_model(str(folder), dtype="float32", device="cpu", prefix_token_id=prefix),
    )
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    wanted = [name for name in TASKS if prefix is None or name != "local_answer"]
    theirs, ours = (
        lm_eval.simple_evaluate(model=model, tasks=wanted, task_manager=manager, bootstrap_iters=0) for model in models
    )  # fmt: skip
    figures = {
        f"{task} {name}": (value, ours["results"][task][name])
        for task, row in theirs["results"].items()
        for name, value in row.items()
        if isinstance(value, float) and "stderr" not in name
    }

    def said(found: Any, task: str) -> list[Any]:
        rows = sorted(found["samples"][task], key=lambda row: row["doc_id"])
        return [answer for row in rows for each in row["resps"] for answer in each]

    both = {task: [*zip(said(theirs, task), said(ours, task), strict=True)] for task in wanted}
    choice, rolling = both["local_choice"], both["local_rolling"]
    return Compared(
        figures=figures,
        nats=[(float(a[0]), float(b[0])) for a, b in choice] + [(float(a), float(b)) for a, b in rolling],
        greedy=[(_true(a[1]), _true(b[1])) for a, b in choice],
        answers=both.get("local_answer", []),
    )


def _true(value: Any) -> bool:
    return str(value) == "True"
