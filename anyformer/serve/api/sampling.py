"""From the fields of a request to the engine's sampling parameters."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyformer.serve.api.context import Context
from anyformer.serve.errors import ApiError, bad_request, too_long

SEEDS = 2**63
PLAIN = ("top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Fields that the engine knows under the same names."""
GUIDED = {"json": "json_schema", "regex": "regex", "grammar": "grammar"}
"""Fields of structured_outputs, and what the engine calls them."""
NAMES = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "choices": "structured_outputs.choice",
    "bad_words": "logit_bias",
}  # fmt: skip
"""What requests call the engine's parameters, where it is something else."""
NATIVE_NAMES = NAMES | {"max_new_tokens": "n_predict", "repetition_penalty": "repeat_penalty"}
"""The same for llama.cpp's fields."""
ENGINE_NAMES = re.compile(r"\b(?:max_new_tokens|min_new_tokens|bad_words)\b")
"""Parameters whose names are no words of their own, so that they are known inside of a sentence too."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the answers to one prompt are made."""

    params: dict[str, Any]
    """For the engine: JSON values under the names of SamplingParams."""
    n: int = 1
    """Answers that the engine makes."""
    copies: int = 1
    """How often each of them is sent: without a draw all answers are the same."""
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """Ids that end an answer and are no part of its text."""
    asked_ids: frozenset[int] = frozenset()
    """Those of them that the request named; the others are the model's own."""
    least: int = 0
    max_tokens: int = 1
    names: Mapping[str, str] = field(default_factory=dict)
    """What the request calls the engine's parameters, where it is something else."""


def room_for(context: Context, prompt: int) -> int:
    """New tokens that fit after a prompt of so many; the last one is never read back, so it takes no room."""
    before = prompt if context.facts.topology == "decoder" else 1
    return context.room - before + 1


def new_tokens(
    context: Context,
    prompt: int,
    asked: int | None,
    usual: int | None,
    *,
    fields: tuple[str, str] = ("prompt", "max_tokens"),
) -> int:
    """How many tokens are generated at most; more than there is room for is refused, not cut. `fields` are those of the
    request that hold the prompt and their number.
    """
    room = room_for(context, prompt)
    if room < 1 or prompt > context.room:
        raise too_long(prompt, context.room, param=fields[0])
    if asked is None:
        return room if usual is None else min(usual, room)
    if asked > room:
        raise too_long(prompt, context.room, new=asked, param=fields[1])
    return asked


def engine_params(
    data: Mapping[str, Any],
    context: Context,
    *,
    max_tokens: int,
    n: int | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    guided: Mapping[str, Any] | None = None,
    names: Mapping[str, str] = NAMES,
) -> Sampling:
    """The parameters of a request whose fields were read by one of our tables. `guided` overrides what they say."""
    defaults = context.defaults
    least = data.get("min_tokens") or 0
    if least > max_tokens:
        raise bad_request(f"min_tokens: {least} is more than max_tokens, {max_tokens}", "min_tokens")
    stop = data.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    ends = set() if data.get("ignore_eos") else set(context.facts.eos)
    asked = frozenset(data.get("stop_token_ids") or ())
    ends |= asked
    temperature = _first(data.get("temperature"), defaults.get("temperature"), 1.0)
    params: dict[str, Any] = {
        "max_new_tokens": max(1, max_tokens), "min_new_tokens": min(least, max(1, max_tokens)),
        "temperature": temperature, "stop": [*sorted(ends), *stops],
    }  # fmt: skip
    if data.get("ignore_eos"):
        params["ignore_eos"] = True
    for name in PLAIN:
        value = _first(data.get(name), defaults.get(name))
        if value is not None:
            params[name] = value
    top_k = _first(data.get("top_k"), defaults.get("top_k"))
    if top_k is not None and top_k > 0:
        params["top_k"] = top_k
    if data.get("logit_bias"):
        params["logit_bias"] = data["logit_bias"]
    if temperature > 0:
        params["seed"] = seed_of(_first(data.get("seed"), defaults.get("seed")))
    if logprobs is not None:
        params["logprobs"] = min(logprobs, context.facts.vocab)
    if prompt_logprobs is not None:
        params["prompt_logprobs"] = min(prompt_logprobs, context.facts.vocab)
    params |= guided if guided is not None else guided_params(data)
    answers = data.get("n", 1) if n is None else n
    drawn = answers if temperature > 0 else 1
    if drawn > 1:
        params["n"] = drawn
    return Sampling(
        params=params, n=drawn, copies=answers // drawn, stops=stops, stop_ids=frozenset(ends), asked_ids=asked,
        least=least, max_tokens=max_tokens, names={"guided": guided_field(data)} | dict(names),
    )  # fmt: skip


def seed_of(given: int | None) -> int:
    """The engine's seeds are not negative; without one the draw is anybody's guess, after each start of the server too."""
    return secrets.randbits(63) if given is None else given % SEEDS


def guided_params(data: Mapping[str, Any]) -> dict[str, Any]:
    """What response_format and structured_outputs ask of the engine."""
    wanted: Mapping[str, Any] = data.get("response_format") or {"type": "text"}
    named = {
        # As a JSON Schema, false is one that allows nothing.
        name: value
        for name, value in (data.get("structured_outputs") or {}).items()
        if value is not None and (value is not False or name == "json")
    }
    if named and wanted["type"] != "text":
        raise bad_request("structured_outputs: response_format asks for another form; give one of them", "structured_outputs")  # fmt: skip
    if len(named) > 1:
        raise bad_request(f"structured_outputs: {', '.join(named)}: give one of them", "structured_outputs")
    if "choice" in named:
        return {"choices": named["choice"]}
    for name, value in named.items():
        return {"guided": {"json_object": True} if name == "json_object" else {GUIDED[name]: value}}
    if wanted["type"] == "text":
        return {}
    inner = wanted.get("json_schema") or {}
    schema = inner.get("schema") if inner else wanted.get("schema")
    if schema is None and wanted["type"] == "json_schema":
        raise bad_request("response_format.json_schema: is missing; give {name, schema}", "response_format.json_schema", "missing_required_parameter")  # fmt: skip
    return {"guided": {"json_object": True} if schema is None else {"json_schema": schema}}


def guided_field(data: Mapping[str, Any]) -> str:
    """The field of a request that leaves only some texts."""
    if data.get("structured_outputs"):
        return "structured_outputs"
    return "tools" if (data.get("response_format") or {"type": "text"})["type"] == "text" else "response_format"


def renamed(error: ApiError, sampling: Sampling) -> ApiError:
    """What the engine refuses, by the names that the request has for it."""
    if error.status != 400 or error.param is not None:
        return error
    name, colon, rest = error.message.partition(": ")
    known = colon and name in sampling.params
    if known:
        error.param = sampling.names.get(name, name)
        # A grammar is told by its kind too, which may be the very name of its field.
        error.message = rest if rest.startswith(f"{error.param}: ") else f"{error.param}: {rest}"
    error.message = ENGINE_NAMES.sub(lambda found: sampling.names.get(found[0], found[0]), error.message)
    return error


def generation_defaults(generation: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling where a request says nothing: what the operator gave, else the model's generation_config.json."""
    found: dict[str, Any] = {}
    if generation.get("do_sample", True):
        for name, low, high in (("temperature", 0, 100), ("top_p", 0, 1), ("top_k", 0, 2**31 - 1), ("min_p", 0, 1), ("repetition_penalty", 0, 10)):  # fmt: skip
            value = generation.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and low < value <= high:
                found[name] = value
    return found | dict(given)


def check_seq2seq(context: Context, names: Sequence[tuple[str, Any]]) -> None:
    """Refuse what needs the log-probabilities of a prompt where nothing predicts it."""
    if context.facts.topology == "decoder":
        return
    for name, value in names:
        if value:
            raise ApiError(400, f"{name}: an {context.facts.topology} predicts no token of its prompt; leave it out", param=name, code="unsupported_value")  # fmt: skip


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
