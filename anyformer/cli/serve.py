"""`anyformer serve`: a model behind the OpenAI API, and a page that shows what it thinks.

anyformer serve runs/quickstart
anyformer serve path/to/model --port 8080 --dtype bfloat16 --max-num-seqs 64
anyformer serve org/name --quantize int8 --host 0.0.0.0 --api-key-file keys.txt
anyformer serve
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.model import DTYPES, FOLDER, check_folder, working
from anyformer.cli.parser import Command, add_ignore_keys, flag, number, option, whole
from anyformer.errors import InputError
from anyformer.serve.config import Limits, ServeConfig

if TYPE_CHECKING:
    from anyformer.serve.engine.messages import EngineFacts
    from anyformer.serve.http.listen import Server

RUNS = Path("runs")
KEY = "ANYFORMER_API_KEY"
QUANTIZE = ("int8", "int4")
POOLING = ("mean", "cls", "last", "none")
LIMITS = {
    "body_bytes": ("bytes of a request", int), "head_bytes": ("bytes of its head", int), "head_seconds": ("seconds for a head to arrive", float),
    "body_seconds": ("seconds for a body to arrive", float), "connections": ("connections at once", int),
    "connections_per_address": ("connections of one address", int), "queue": ("requests that may wait", int),
    "request_seconds": ("seconds that a request may take", float), "grace_seconds": ("seconds to finish after SIGTERM", float),
    "prompts": ("prompts of one request", int), "n": ("answers to one prompt", int),
}  # fmt: skip
"""Limits that have an option of their own: what they bound, and their type."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "model", f"{FOLDER}; without one the newest of runs/ is offered", "MODEL", nargs="?")
    option(parser, "--host", "the address to listen on; another one than 127.0.0.1 needs an API key", "ADDRESS", default="127.0.0.1")  # fmt: skip
    option(parser, "--port", "0: any that is free", whole(0), default=8000)
    words = f"a file with one API key in each line; or one key in ${KEY}. Requests then need one of them"
    option(parser, "--api-key-file", words, "FILE")
    option(parser, "--served-model-name", "the name that requests ask for; may be given several times", "NAME", action="append", default=[])  # fmt: skip
    option(parser, "--device", "cpu or cuda (or cuda:1 ...); by default cuda where there is one", "DEVICE")
    option(parser, "--dtype", "of the weights; by default the checkpoint's on cuda, float32 on a CPU", DTYPES)
    option(parser, "--quantize", "keep weights in so many bits", QUANTIZE)
    option(parser, "--draft", "a smaller model with the same vocabulary that proposes tokens", "MODEL")
    option(parser, "--max-num-seqs", "sequences that run beside each other (32, or as many as fit)", whole(1))
    option(parser, "--max-model-len", "tokens of a sequence, its prompt included; by default what the model is made for", whole(1))  # fmt: skip
    option(parser, "--num-blocks", "blocks of the KV cache, which all sequences share", whole(1))
    option(parser, "--kv-cache-dtype", "how keys and values are kept", ("model", "int8"), default="model")
    option(parser, "--max-num-batched-tokens", "tokens that a step computes", whole(1), default=2048)
    flag(parser, "--batch-invariant", "a request gets the same bits whoever else is there; slower")
    flag(parser, "--no-share", "compute equal beginnings of prompts each time")
    option(parser, "--pooling", "how /v1/embeddings makes one vector of a text", POOLING)
    option(parser, "--chat-template", "a file with the chat template, instead of the model's own", "FILE")
    option(parser, "--default-chat-template-kwargs", 'variables of the chat template where a request says nothing, e.g. {"enable_thinking": false}', "JSON", default="{}")  # fmt: skip
    option(parser, "--default", "a sampling parameter where a request says nothing, e.g. temperature=0.7", "NAME=VALUE", action="append", default=[])  # fmt: skip
    option(parser, "--cors-origins", "an origin whose pages may ask, whole; may be given several times", "ORIGIN", action="append", default=[])  # fmt: skip
    option(parser, "--connect-origins", "an origin of another server that the page's Compare may ask; may be given several times", "ORIGIN", action="append", default=[])  # fmt: skip
    option(parser, "--allowed-hosts", "a further name of this server (Host header); may be given several times", "NAME", action="append", default=[])  # fmt: skip
    flag(parser, "--any-model", "answer whatever model a request names")
    flag(parser, "--slots", "let GET /slots tell what runs (never texts)")
    flag(parser, "--no-metrics", "no GET /metrics")
    flag(parser, "--front-end-process", "the engine in a process of its own, apart from HTTP: for GPUs")
    option(parser, "--tensor-parallel-size", "GPUs that share one model", whole(1), default=1)
    option(parser, "--threads", "torch's threads", whole(1))
    option(parser, "--log", "how requests are logged; never their text", ("text", "json", "none"), default="text")
    add_ignore_keys(parser)
    limits, usual = parser.add_argument_group("limits"), Limits()
    for name, (words, kind) in LIMITS.items():
        words = f"{words} ({getattr(usual, name):g})" if kind is float else f"{words} ({getattr(usual, name)})"
        option(limits, limit_option(name), words, whole(1) if kind is int else number(above=0), dest=f"limit_{name}")


def limit_option(name: str) -> str:
    """The option of a limit."""
    return ("--max-" if LIMITS[name][1] is int else "--") + name.replace("_", "-")


def _run(given: argparse.Namespace) -> int:
    """Serve."""
    if given.tensor_parallel_size > 1:
        raise InputError(
            f"--tensor-parallel-size {given.tensor_parallel_size}: the engine runs a model on one device; its KV blocks are "
            "not divided among several. Serve a quantised model (--quantize int8), or start one server for each GPU "
            "(--device cuda:1) behind a load balancer"
        )
    if given.model is None:
        return _offer()
    config = read_config(given)
    # The processes that a server starts have no use for its key.
    os.environ.pop(KEY, None)
    for path in filter(None, (given.model, given.draft)):
        # A folder of sentence-transformers may hold the model in one of its own.
        if not (Path(path) / "modules.json").is_file():
            check_folder(path, fetch=False)
    from anyformer.serve.server import serve

    with ExitStack() as spinner:
        spinner.enter_context(working(f"reading {given.model}"))

        def ready(server: Server, facts: EngineFacts) -> None:
            spinner.close()
            sys.stderr.write(f"anyformer: {given.model} at {server.url} ({_offered(facts)}); Ctrl-C ends it\n")
            sys.stderr.flush()

        return serve(config, ready)


def _offered(facts: EngineFacts) -> str:
    """What can be asked of a model."""
    if facts.generates:
        return "a page, and the OpenAI API under /v1"
    return f"an {facts.topology}, which continues no text: it serves /v1/embeddings"


def _offer() -> int:
    """Say what could be served."""
    found = sorted(RUNS.glob("*/spec.toml"), key=lambda place: -place.stat().st_mtime) if RUNS.is_dir() else []
    if not found:
        raise InputError(f"MODEL: is missing, and there is no trained model in {RUNS}/; give {FOLDER}, or train one: anyformer quickstart")  # fmt: skip
    lines = [f"  anyformer serve {place.parent}" for place in found[:10]]
    sys.stderr.write("anyformer: MODEL is missing; trained models here, the newest first:\n" + "\n".join(lines) + "\n")
    return 2


def read_config(given: argparse.Namespace) -> ServeConfig:
    """The settings that were given."""
    return ServeConfig(
        model=given.model, served_model_name=tuple(given.served_model_name), host=given.host, port=given.port,
        keys=read_keys(given.api_key_file), cors_origins=tuple(given.cors_origins), connect_origins=tuple(given.connect_origins), allowed_hosts=tuple(given.allowed_hosts),
        device=given.device, dtype=given.dtype, quantize=given.quantize, draft=given.draft, max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len, num_blocks=given.num_blocks, kv_cache_dtype=given.kv_cache_dtype,
        max_num_batched_tokens=given.max_num_batched_tokens, batch_invariant=given.batch_invariant,
        enable_prefix_caching=not given.no_share, pooling=given.pooling, chat_template=given.chat_template,
        chat_template_kwargs=read_kwargs(given.default_chat_template_kwargs),
        defaults=read_defaults(given.default), any_model=given.any_model, metrics=not given.no_metrics, slots=given.slots,
        front_end_process=given.front_end_process, ignore_keys=tuple(given.ignore_keys), threads=given.threads, log=given.log,
        limits=_limits(given),
    )  # fmt: skip


def _limits(given: argparse.Namespace) -> Limits:
    named = {name: getattr(given, f"limit_{name}") for name in LIMITS}
    return Limits(**{name: value for name, value in named.items() if value is not None})


def read_keys(path: str | None) -> tuple[str, ...]:
    """API keys: never from the command line, which everybody on the machine can read."""
    single = os.getenv(KEY)
    if path is None:
        return (single.strip(),) if single else ()
    if single:
        raise InputError(f"--api-key-file: there is a key in ${KEY} too; give keys in one place")
    try:
        # Editors of Windows begin a file with a mark, which is no part of its first key.
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--api-key-file: {path}: can't be read: {error}") from error
    stripped = [line.strip() for line in lines]
    keys = tuple(line for line in stripped if line and not line.startswith("#"))
    if not keys:
        raise InputError(f"--api-key-file: {path}: holds no key; write one in each line")
    return keys


def read_kwargs(given: str) -> tuple[tuple[str, Any], ...]:
    """Variables of the chat template."""
    import json

    try:
        found = json.loads(given)
    except ValueError as error:
        raise InputError(f"--default-chat-template-kwargs: {given!r} is no JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(value, str | int | float) for value in found.values()):
        raise InputError(f"--default-chat-template-kwargs: {given!r} is no object of texts, numbers and true or false")
    return tuple(found.items())


def read_defaults(given: list[str]) -> tuple[tuple[str, Any], ...]:
    """Sampling parameters as NAME=VALUE, by the bounds that requests have."""
    import json

    from anyformer.serve.fields.kinds import Wrong, near
    from anyformer.serve.fields.sampling import SOME_TOKENS, Bounds, sampling_fields

    bounds = Bounds(limits=Limits(), vocab=2**31, input_vocab=2**31, room=2**31, slots=1)
    names = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")  # fmt: skip
    known = {field.name: field.kind for field in sampling_fields(bounds) if field.name in names} | {
        "max_tokens": SOME_TOKENS
    }
    found: list[tuple[str, Any]] = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise InputError(
                f"--default: {text!r} is not NAME=VALUE with one of {', '.join(known)}{near(name, list(known))}"
            )
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        try:
            found.append((name, known[name].read(parsed, name)))
        except Wrong as error:
            raise InputError(f"--default: {error}") from error
    return tuple(found)


COMMAND = Command("serve", "serve a model over HTTP: the OpenAI API and a page", __doc__, _arguments, _run)
