"""llama-server's command line for `anyformer serve`: what llama.cpp's own server tests start instead of their program.

It translates flags and then becomes the server. What there is no counterpart for ends it with status 2 and the reason,
which `run.py` counts. Folders of models come from the environment, as the tests name models of the Hub.
"""

import argparse
import datetime
import json
import os
import sys
import uuid
from pathlib import Path

DECODER, ENCODER, SCRATCH = "ANYFORMER_SUITE_DECODER", "ANYFORMER_SUITE_ENCODER", "ANYFORMER_SUITE_SCRATCH"
FORKS = "ANYFORMER_SUITE_FORKS"
"""The socket of `forks.py`, if there is one."""
MODELS = {
    ("ggml-org/test-model-stories260K", None): DECODER,
    ("ggml-org/models", "tinyllamas/stories260K.gguf"): DECODER,
    ("ggml-org/models", "bert-bge-small/ggml-model-f16.gguf"): ENCODER,
}
MARK = "not here:"
"""Begins the reason why a server was not started."""
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
COMMAND_R = (
    "{% for message in messages %}<|START_OF_TURN_TOKEN|><|{{ {'user': 'USER', 'assistant': 'CHATBOT'}.get(message.role, 'SYSTEM') }}"
    "_TOKEN|>{{ message.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "command-r": COMMAND_R}
"""Templates that llama-server knows by name, as far as the tests ask for them. A model without one gets chatml there."""
SWITCHES = (
    "--offline", "--cont-batching", "--embedding", "--metrics", "--kv-unified", "--swa-full", "--slots", "--no-slots",
    "--verbose", "--jinja", "--no-jinja", "--no-mmproj", "--no-cache-idle-slots", "--backend_sampling",
)  # fmt: skip
UNREAD = (
    "--batch-size",
    "--ubatch-size",
    "--threads",
    "--n-gpu-layers",
    "-fa",
    "--cache-ram",
    "--tags",
    "--reasoning-format",
)
"""Flags with a value that change no answer here, or only fields that we do not have."""
MISSING = {
    "--model-url": "no downloads from a URL", "--model": "no file of theirs", "--models-dir": "a router of several models",
    "--models-max": "a router of several models", "--models-preset": "a router of several models",
    "--reranking": "no reranking", "--lora": "no LoRA adapters", "--context-shift": "no context shift",
    "--model-draft": "no draft model for this one", "--spec-type": "no speculative settings by flag", "--slot-save-path": "slots are not saved",
    "--grp-attn-n": "no self-extend", "--grp-attn-w": "no self-extend",
    "--no-models-autoload": "a router of several models", "--mmproj-url": "text only", "--media-path": "text only",
    "--sleep-idle-seconds": "a server does not sleep", "--ui-mcp-proxy": "no MCP", "--tools": "no built-in tools",
    "--tools-runtime": "no built-in tools", "--mcp-servers-config": "no MCP", "--mcp-servers-json": "no MCP",
    "-ctk": "KV types by other names", "-ctv": "KV types by other names", "--no-ui": "the page is always there",
}  # fmt: skip
BARE = {"--reranking", "--context-shift", "--no-ui", "--no-models-autoload", "--ui-mcp-proxy"}
"""Those of them that have no value."""


def refuse(why: str) -> None:
    """End with a reason that the runner finds in the output."""
    print(f"{MARK} {why}", flush=True)
    raise SystemExit(2)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="llama-server")
    for name in SWITCHES:
        parser.add_argument(name, action="store_true")
    for name in (*UNREAD, "--host", "--hf-repo", "--hf-file", "--alias", "--pooling", "--api-key", "--chat-template",
                 "--chat-template-file", "--cors-origins", "--reasoning"):  # fmt: skip
        parser.add_argument(name)
    for name in (
        "--port",
        "--seed",
        "--ctx-size",
        "--parallel",
        "--n-predict",
        "--spec-draft-n-max",
        "--spec-draft-n-min",
    ):
        parser.add_argument(name, type=int)
    parser.add_argument("--temp", type=float)
    for name in MISSING:
        parser.add_argument(name, action="store_true" if name in BARE else "append", dest=name)
    return parser


def scratch(text: str) -> str:
    """A file with a text, which the runner takes away."""
    place = Path(os.environ[SCRATCH]) / uuid.uuid4().hex
    place.write_text(text, encoding="utf-8")
    return str(place)


def translate(argv: list[str]) -> list[str]:
    """The arguments of `anyformer serve`."""
    given, unknown = arguments().parse_known_args(argv)
    if unknown:
        refuse(f"the flag {unknown[0]}")
    for name, why in MISSING.items():
        if vars(given)[name]:
            refuse(f"{why} ({name})")
    if given.hf_repo is None:
        refuse("a router of several models (no model)")
    model = os.environ.get(MODELS.get((given.hf_repo, given.hf_file), ""))
    if model is None:
        refuse(f"the model {given.hf_repo} {given.hf_file or ''}".rstrip())
    slots = given.parallel or 4
    made = [str(model), "--host", given.host, "--port", str(given.port), "--max-num-seqs", str(slots), "--any-model"]
    made += ["--threads", "1", "--grace-seconds", "2", "--default", f"temperature={given.temp}", "--default", f"seed={given.seed}"]  # fmt: skip
    if given.ctx_size:
        room = given.ctx_size if given.kv_unified else given.ctx_size // slots
        made += ["--max-model-len", str(room)]
    if given.n_predict and given.n_predict > 0:
        made += ["--default", f"max_tokens={given.n_predict}"]
    # Theirs keeps aliases in a sorted set, the first of which is the name.
    for name in sorted((given.alias or "").split(",")):
        made += ["--served-model-name", name] if name else []
    made += [] if given.metrics else ["--no-metrics"]
    made += ["--slots"] if given.slots else []
    made += ["--pooling", given.pooling] if given.pooling else []
    made += ["--api-key-file", scratch(given.api_key)] if given.api_key else []
    for origin in (given.cors_origins or "").split(","):
        if origin and "://" not in origin:
            refuse(f"origins that are not whole (--cors-origins {origin})")
        made += ["--cors-origins", origin] if origin else []
    # Theirs tells every template whether to think, and which day it is.
    today = datetime.date.today()
    names = {
        "enable_thinking": given.reasoning != "off",
        "date_string": f"{today:%d %b %Y}",
        "datetime": f"{today:%b %d %Y}",
    }
    template = None
    if given.chat_template_file:
        template = given.chat_template_file
    elif MODELS[given.hf_repo, given.hf_file] == DECODER:
        named = given.chat_template or "chatml"
        # Theirs puts bos before every prompt, whatever the template says.
        template = scratch("{{ bos_token }}" + TEMPLATES.get(named, named))
    if template is not None:
        # Ours refuses variables that a template doesn't read.
        text = Path(template).read_text(encoding="utf-8")
        read = {name: value for name, value in names.items() if name in text}
        made += ["--chat-template", template, "--default-chat-template-kwargs", json.dumps(read)]
    return made


if __name__ == "__main__":
    command = ["serve", *translate(sys.argv[1:])]
    forks = os.environ.get(FORKS)
    if forks is None:
        os.execv(sys.executable, [sys.executable, "-m", "anyformer", *command])
    from bench.llama_suite.forks import become

    raise SystemExit(become(forks, command))
