"""The page of the server in a browser, before canned answers: what a test says is what the page gets."""

import base64
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from anyformer.serve.page import page_files, policy

BASE = "http://localhost:1"
"""Nobody listens there: every request is answered by the stage."""
WORDS = ("<s>", " the", " cat", " dog", " sat", " on", " mat", " and", ".", " a", " ran", " far", " away", " home", "\n", " she",
         " he", " was", " very", " small", " big", " red", " blue", " house", " tree", " sun")  # fmt: skip
MODEL: dict[str, Any] = {
    "name": "staged", "chat": True, "topology": "decoder", "generates": True, "spec": {"width": 8, "depth": 2},
    "counts": {"params": 1234567}, "kv_bytes_per_token": 1024, "max_model_len": 4096, "vocab": len(WORDS),
    "limits": {"look_tokens": 256, "n": 8}, "defaults": {"temperature": 0.8},
}  # fmt: skip
METRICS = """# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="staged",engine="0"} 3
vllm:num_requests_waiting{model_name="staged",engine="0"} 2
vllm:generation_tokens_total{model_name="staged",engine="0"} 100
vllm:prompt_tokens_total{model_name="staged",engine="0"} 50
vllm:kv_cache_usage_perc{model_name="staged",engine="0"} 0.25
"""


@dataclass
class Reply:
    """An answer to one request; None as its body: the connection breaks."""

    body: bytes | str | None
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


def as_json(value: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(json.dumps(value), status, headers=headers)


def refused(status: int, message: str, **headers: str) -> Reply:
    error = {"message": message, "type": "error", "param": None, "code": None}
    return as_json({"error": error}, status, **{name.replace("_", "-"): value for name, value in headers.items()})


def stream(chunks: Sequence[Any], *, done: bool = True) -> Reply:
    """Events, a comment among them as a server sends in silence."""
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return Reply(": ping\n\n" + "".join(lines) + ("data: [DONE]\n\n" if done else ""), kind="text/event-stream")


def candidates(previous: int, words: Sequence[str] = WORDS) -> list[tuple[int, float]]:
    """Ids and log-probabilities after a token, the likeliest first: the next word, and falling from there."""
    weights = [2.0**-rank for rank in range(len(words))]
    order = [(previous + 1 + rank) % len(words) for rank in range(len(words))]
    return [(token, math.log(weight / sum(weights))) for token, weight in zip(order, weights, strict=True)]


def entry(previous: int | None, token: int, words: Sequence[str] = WORDS) -> dict[str, Any]:
    """What is known of a token, by the names of the API's lists."""
    top = candidates(previous, words)[:20] if previous is not None else None
    own = dict(candidates(previous, words))[token] if previous is not None else None
    return {
        "tokens": words[token], "token_logprobs": own, "top_ids": top and [list(pair) for pair in top], "text_offset": 0,
        "top_logprobs": top and {words[i] if top.count((i, p)) else f"token_id:{i}": p for i, p in top},
    }  # fmt: skip


def logprobs(entries: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {
        name: [each[name] for each in entries]
        for name in ("tokens", "token_logprobs", "top_logprobs", "top_ids", "text_offset")
    }


def read_text(text: str) -> list[int]:
    """Ids of the words that a text is made of, after the one that begins every text."""
    known = {word: token for token, word in enumerate(WORDS)}
    return [0, *(known.get(word, 1) for word in re.findall(r" ?[a-z]+|[^a-z]", text))]


def completion(body: dict[str, Any], new: Sequence[int] | None = None, words: Sequence[str] = WORDS) -> Reply:
    """The tokens that come after a prompt: `new`, or the likeliest one after each."""
    ids = body["prompt"] if isinstance(body["prompt"], list) else read_text(body["prompt"])
    count = body.get("max_tokens", 16)
    whole = [*ids, *(new if new is not None else [(ids[-1] + 1 + i) % len(words) for i in range(count)])]
    entries = [entry(whole[i - 1] if i else None, token, words) for i, token in enumerate(whole)]
    first = entries[: len(ids)] if body.get("echo") else []
    if not body.get("stream"):
        scored = {"index": 0, "text": "", "logprobs": logprobs(first), "prompt_token_ids": ids, "token_ids": []}
        return as_json({"choices": [scored | {"finish_reason": "length"}], "usage": {}})
    chunks: list[Any] = []
    for i, token in enumerate(whole[len(ids) :]):
        said = {"index": 0, "text": words[token], "token_ids": [token], "finish_reason": None}
        said["logprobs"] = logprobs([*first, entries[len(ids) + i]])
        chunks.append({"choices": [said | ({} if i else {"prompt_token_ids": ids})]})
        first = []
    made = len(whole) - len(ids)
    chunks.append({"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": len(ids), "completion_tokens": made, "total_tokens": len(whole)}})  # fmt: skip
    return stream(chunks)


def chat(body: dict[str, Any], said: Sequence[str] | None = None) -> Reply:
    """An answer whose tokens are these texts."""
    texts = list(said if said is not None else [WORDS[i + 1] for i in range(body.get("max_tokens", 8) % 8 + 4)])

    def told(text: str, logprob: float, token: int) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace")), "id": token}

    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "logprobs": None}]}]
    for place, text in enumerate(texts):
        top = [told(text, -0.2, place), told(" else", -2.0, 99)]
        each = {"delta": {"content": text}, "logprobs": {"content": [top[0] | {"top_logprobs": top}]}}
        chunks.append({"choices": [{"index": 0, "finish_reason": None, **each}]})
    chunks.append({"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]})
    return stream([*chunks, {"choices": [], "usage": {"completion_tokens": len(texts)}}])


def template(body: dict[str, Any]) -> Reply:
    """A special token for each role, and the words."""
    pieces: list[dict[str, Any]] = []
    for message in body["messages"]:
        pieces.append({"id": 0, "piece": f"<|{message['role']}|>", "special": True})
        pieces.append({"id": 1, "piece": message["content"], "special": False})
    return as_json({"prompt": "rendered", "tokens": [each["id"] for each in pieces], "pieces": pieces})


def look(body: dict[str, Any], texts: Sequence[str] = WORDS) -> Reply:
    """What two layers with two heads each would say, all of it made up."""
    ids: list[int] = body["ids"]
    size = len(ids)
    weights = bytes(
        255 if column <= row else 0 for _ in range(2) for row in range(size) for column in range(size)
    )  # fmt: skip
    data = base64.b64encode(zlib.compress(weights)).decode()
    last = [[[token, 0.6], [1, 0.2], [2, 0.1]] for token in ids]
    return as_json({
        "name": "staged", "figures": [["layers", "2"]], "ids": ids, "source": None,
        "texts": {str(i): text for i, text in enumerate(texts)}, "source_texts": {}, "predicts": "next",
        "layers": [{"name": name, "top": last} for name in ("embedding", "layer 0", "layer 1")],
        "given": [None, *([0.5, 1] for _ in ids[1:])],
        "attention": [{"name": f"layer {i}", "heads": 2, "rows": "tokens", "columns": "tokens", "data": data} for i in range(2)],
        "first": {"attention": 0, "head": 0}, "notes": ["a note"],
    })  # fmt: skip


def tokenize(body: dict[str, Any]) -> Reply:
    ids = read_text(body.get("content", ""))
    tokens: list[Any] = [{"id": i, "piece": WORDS[i]} for i in ids] if body.get("with_pieces") else ids
    return as_json({"tokens": tokens, "count": len(ids), "max_model_len": 4096})


@dataclass
class Stage:
    """A browser's context whose requests are answered here."""

    context: Any
    model: dict[str, Any] = field(default_factory=lambda: dict(MODEL))
    answers: dict[str, Callable[..., Reply | None]] = field(default_factory=dict)
    """By path. An answer of None never comes."""
    asked: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    """Path, body and headers of all requests to the API."""
    strangers: list[str] = field(default_factory=list)
    """Requests to other hosts."""
    said: list[str] = field(default_factory=list)
    """What the console says."""
    page: Any = None

    def __post_init__(self) -> None:
        self.answers = {
            "/api/model": lambda _: as_json(self.model), "/metrics": lambda _: Reply(METRICS, kind="text/plain"),
            "/tokenize": tokenize, "/v1/completions": completion, "/v1/chat/completions": chat,
            "/apply-template": template, "/api/look": look,
        } | self.answers  # fmt: skip
        self.context.route("**/*", self._answer)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def _answer(self, route: Any) -> None:
        url = urlsplit(route.request.url)
        path, files = url.path, page_files()
        if f"{url.scheme}://{url.netloc}" != BASE:
            self.strangers.append(route.request.url)
            route.abort()
            return
        if path in files:
            headers = {"content-security-policy": policy(), "content-type": files[path].content_type}
            route.fulfill(body=files[path].body, headers=headers)
            return
        body = json.loads(route.request.post_data) if route.request.post_data else None
        self.asked.append((path, body, route.request.headers))
        reply = self.answers[path](body)
        if reply is None:
            return
        if reply.body is None:
            route.abort()
        else:
            route.fulfill(status=reply.status, body=reply.body, headers={"content-type": reply.kind, **reply.headers})

    def open(self, address: str = "") -> Any:
        self.page.goto(f"{BASE}/{address}")
        self.page.locator("html[data-ready]").wait_for(state="attached")
        return self.page

    def bodies(self, path: str) -> Iterator[Any]:
        """What was sent to a path."""
        return (body for asked, body, _ in self.asked if asked == path)
