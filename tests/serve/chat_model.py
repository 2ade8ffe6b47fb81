"""A tiny decoder that ends some of its answers, with special tokens and a chat template that knows tools."""

from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from tests.contract.contracts import randomise

TEXT = "the cat sat on the mat, and the dog sat on the cat.\n" * 4
SPEC: dict[str, Any] = {
    "width": 32, "depth": 2, "context": 256, "attention": {"heads": 4, "kv_heads": 2, "head_dim": 8},
    "ffn": {"kind": "swiglu", "width": 48}, "ids": {"bos": 0},
}  # fmt: skip
CHAT = """{% if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool.function.name }}{% endfor %}; write <tool_call>...</tool_call><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or "" }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>{% endif %}{% endif %}"""
ENDS = [2, *range(40, 52)]
"""Ids that end an answer: <|im_end|>, and some signs, so that random weights end some of theirs."""


def write_chat_model(folder: Path) -> Path:
    """Write it."""
    tokenizer = train_bpe([TEXT], 300, ("<|begin|>", "<|im_start|>", "<|im_end|>"))
    spec = SPEC | {"vocab": tokenizer.vocab, "context": 512, "ids": {"bos": 0, "eos": ENDS}}
    af.save(randomise(af.build(af.spec(spec)), 1).eval(), folder)
    tokenizer.save(folder)
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder
