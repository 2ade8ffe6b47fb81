"""What the tests of the API share: answers put together from their events, and what the model says without a server."""

import codecs
import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, tokenizer
from anyformer.families.io import load
from tests.serve.running import Answer, Running

LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "top_ids")
"""The parts of a completion's log-probabilities."""


def events_of(answer: Answer, *, done: bool = True) -> list[dict[str, Any]]:
    """The events of a stream, all of which have one line of JSON; the last one is [DONE]."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    frames = answer.body.decode().split("\n\n")
    assert frames.pop() == ""
    lines = [frame.removeprefix("data: ") for frame in frames if not frame.startswith(":")]
    if done:
        assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def joined(answer: Answer) -> dict[str, Any]:
    """The body of a streamed completion, as it would have come at once."""
    body, made = _begun(events_of(answer))
    for event in body.pop("events"):
        for part in event["choices"]:
            choice = made.setdefault(part["index"], {"index": part["index"], "text": "", "logprobs": None})
            choice["text"] += part.pop("text")
            _add(choice, part)
    return body | {"choices": [made[index] for index in sorted(made)]}


def joined_chat(answer: Answer) -> dict[str, Any]:
    """The body of a streamed chat completion, as it would have come at once."""
    body, made = _begun(events_of(answer))
    for event in body.pop("events"):
        for part in event["choices"]:
            assert "role" in part["delta"] or part["index"] in made, "the first event says who speaks"
            choice = made.setdefault(
                part["index"], {"index": part["index"], "message": {"content": None, "refusal": None}, "logprobs": None}
            )
            _add_delta(choice["message"], part.pop("delta"))
            _add(choice, part)
    for choice in made.values():
        if "tool_calls" not in choice["message"] and choice["message"]["content"] is None:
            choice["message"]["content"] = ""
    return body | {"object": "chat.completion", "choices": [made[index] for index in sorted(made)]}


def _begun(events: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[int, Any]]:
    """What all events of a stream say alike, and its usage."""
    heads = [{k: v for k, v in event.items() if k not in ("choices", "usage")} for event in events]
    assert all(head == heads[0] for head in heads)
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    return heads[0] | {"usage": usage, "events": events}, {}


def _add(choice: dict[str, Any], part: dict[str, Any]) -> None:
    assert choice.get("finish_reason") is None, "an answer goes on after its end"
    found = part.pop("logprobs")
    if found is not None:
        held = choice["logprobs"] = choice["logprobs"] or {name: [] if value is not None else None for name, value in found.items()}  # fmt: skip
        for name, value in found.items():
            if value is not None:
                held[name] += value
    if "token_ids" in part:
        choice["token_ids"] = choice.get("token_ids", []) + part.pop("token_ids")
    choice |= part


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name, value in delta.items():
        if name == "content" and value is not None:
            assert value, "no event has an empty text"
            message["content"] = (message["content"] or "") + value
        elif name == "tool_calls":
            message.setdefault("tool_calls", []).extend(
                {k: v for k, v in call.items() if k != "index"} for call in value
            )
        elif name != "content":
            message[name] = value


@dataclass(frozen=True)
class Said:
    """What the model says to one prompt, without a server."""

    ids: list[int]
    """Without the one that ended it."""
    end: list[int]
    """That one, if there was one."""
    text: str
    reason: str
    logprobs: list[float]
    top: list[list[int]]
    told: int
    """Tokens that have log-probabilities: all but those of a stop string."""


class Oracle:
    """The model of a folder in fp64, asked by `af.generate`."""

    def __init__(self, folder: Path) -> None:
        self.model = load(folder, "cpu", torch.float64).eval()
        self.tokenizer: Tokenizer = tokenizer(folder)
        self.eos = tuple(self.model.spec.ids.eos)

    def prompt(self, text: str, *, specials: bool = True) -> list[int]:
        """The ids of a text prompt."""
        bos = self.model.spec.ids.bos
        return [bos] * (specials and bos is not None) + self.tokenizer.encode(text)

    def say(self, ids: Sequence[int], *, n: int = 1, stops: Sequence[str] = (), ends: Iterable[int] | None = None, **options: Any) -> list[Said]:  # fmt: skip
        """The answers to one prompt. `ends`: ids that end one; None: those of the model."""
        over = set(self.eos if ends is None else ends)
        found: Any = af.generate(
            self.model, torch.tensor([list(ids)]), n=n, stop=[*sorted(over), *stops], tokenizer=self.tokenizer, details=True, ignore_eos=True,
            **{"logprobs": 0} | options,
        )  # fmt: skip
        return [self._said(found, row, len(ids), stops, over) for row in range(n)]

    def _said(self, found: Any, row: int, prompt: int, stops: Sequence[str], over: set[int]) -> Said:
        reason, size = found.reasons[row], int(found.lengths[row])
        new = found.ids[row, prompt : prompt + size].tolist()
        end = [new.pop()] if reason == "stop" and new[-1] in over else []
        text = self.tokenizer.decode(new)
        at = min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))
        top = [] if found.top is None else found.top.ids[row].tolist()
        told = len(new + end) if at == len(text) else sum(begin < at for begin in self._begins(new))
        return Said(
            new, end, text[:at], reason, found.logprobs[row].tolist()[: len(new + end)], top[: len(new + end)], told
        )

    def _begins(self, ids: Sequence[int]) -> list[int]:
        """The character at which each token begins."""
        decoder, found, size = codecs.getincrementaldecoder("utf-8")("replace"), [], 0
        for token in ids:
            found.append(size)
            size += (
                0
                if token in self.tokenizer.specials.values()
                else len(decoder.decode(self.tokenizer.token_bytes(token)))
            )
        return found

    @functools.lru_cache(1024)
    def scores(self, ids: tuple[int, ...]) -> torch.Tensor:
        """(T,V): log-probabilities of what follows each token, by a plain forward pass."""
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0].log_softmax(-1)


@functools.cache
def oracle_of(folder: Path) -> Oracle:
    """One for each folder."""
    return Oracle(folder)


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """An answer without what differs from request to request."""
    left = {name: value for name, value in body.items() if name not in ("id", "created", *names)}
    for choice in left.get("choices", ()):
        for call in choice.get("message", {}).get("tool_calls") or ():
            assert call.pop("id").startswith("call_")
    return left


def assert_alike(mine: Any, theirs: Any, place: str = "") -> None:
    """Two bodies are equal, up to the last bits of numbers: what stands beside a request may be another thing each time."""
    if isinstance(mine, float) and isinstance(theirs, float):
        assert abs(mine - theirs) <= 1e-9, place
    elif isinstance(mine, dict) and isinstance(theirs, dict):
        assert mine.keys() == theirs.keys(), place
        for name in mine:
            assert_alike(mine[name], theirs[name], f"{place}.{name}")
    elif isinstance(mine, list) and isinstance(theirs, list):
        assert len(mine) == len(theirs), place
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            assert_alike(a, b, f"{place}[{i}]")
    else:
        assert (type(mine), mine) == (type(theirs), theirs), place


def assert_unharmed(running: Running) -> None:
    """Nothing is left of what came, and the server serves."""
    running.eventually(lambda: running.state.active == 0)
    running.eventually(lambda: not running.client._live and running.client.worker.engine.idle)
    running.engine_idle()
    assert running.get("/health").status == 200
