"""What the front end and the engine say to each other: JSON values, and frames of them on a socket."""

import base64
import dataclasses
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.serve.config import Limits, ServeConfig

FRAME_BYTES = 64 * 2**20
"""The most that one frame holds."""
HEAD = 4
"""Bytes before a frame, which say how long it is."""

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What is known of the model and of the engine that serves it."""

    name: str
    """That of its folder, unless the server gives it another one."""
    folder: str
    topology: str
    vocab: int
    input_vocab: int
    context: int
    """Tokens that the model was made for."""
    max_model_len: int
    """Tokens of a sequence here."""
    max_num_seqs: int
    num_blocks: int
    block_size: int
    generates: bool
    embeds: bool
    params: int
    size: int
    """Bytes of the weights."""
    dtype: str
    device: str
    kv_bytes_per_token: int
    """Keys and values that one more token of a long text takes."""
    spec: dict[str, Any]
    eos: list[int]
    """Ids that end an answer."""
    width: int
    embedding_width: int
    """Numbers of a vector of `pooling`."""
    hard_limit: bool
    """Whether the model has no position beyond `context`."""
    pooling: str
    """Of embeddings, unless a request says otherwise: mean, cls, last, none, or model for what its folder says."""
    sentence: dict[str, Any] | None = None
    """How a folder of sentence-transformers reads texts: lower (bool), prompt (str), max_tokens (int or None)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateRequest:
    """One prompt, and how it is continued."""

    id: str
    prompt: list[int]
    params: dict[str, Any]
    """JSON values by the names of SamplingParams."""
    cache_salt: str | None = None


@dataclass(slots=True)
class Output:
    """What a step did for one sequence of a request."""

    index: int
    ids: list[int]
    logprobs: Sequence[float] | None = None
    top: Sequence[Any] | None = None
    """At each new token, [id, logprob] of the likeliest."""
    prompt_logprobs: Sequence[Any] | None = None
    """By token of the prompt, None or [logprob, [[id, logprob], ...]]."""
    finish_reason: str | None = None
    error: str | None = None
    stop_text: str | None = None
    """The stop string or choice that was met."""


def pack_config(config: ServeConfig) -> Message:
    """Settings as JSON. The API keys stay where requests come in."""
    return dataclasses.asdict(dataclasses.replace(config, keys=()))


def unpack_config(given: Mapping[str, Any]) -> ServeConfig:
    """The same back."""
    found = {name: _tuples(value) for name, value in given.items() if name != "limits"}
    return ServeConfig(**found, limits=Limits(**given["limits"]))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def pack_floats(rows: "Sequence[array[float]]", width: int) -> Message:
    """Vectors of one width as text, which is read far faster than numbers in JSON. By row: one vector, or one by token."""
    whole = array(rows[0].typecode if rows else "d")
    for row in rows:
        whole.extend(row)
    data = base64.b64encode(whole.tobytes()).decode("ascii")
    return {"code": whole.typecode, "width": width, "counts": [len(row) // width for row in rows], "data": data}


def unpack_floats(given: Mapping[str, Any]) -> list[list[list[float]]]:
    """By row, its vectors."""
    whole, width, at = array(given["code"]), given["width"], 0
    whole.frombytes(base64.b64decode(given["data"]))
    found: list[list[list[float]]] = []
    for count in given["counts"]:
        found.append([whole[at + i * width : at + (i + 1) * width].tolist() for i in range(count)])
        at += count * width
    return found


class FrameError(ValueError):
    """Bytes that are no frame of ours."""


def to_frame(message: Message) -> bytes:
    """A message as its length and JSON."""
    # Log-probabilities may be -Infinity, which Python's JSON writes and reads.
    body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > FRAME_BYTES:
        raise FrameError(f"a message of {len(body):,} bytes; the most is {FRAME_BYTES:,}")
    return len(body).to_bytes(HEAD, "big") + body


class FrameReader:
    """Messages from bytes as they come."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted: int | None = None

    def push(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now."""
        self._buffer += data
        while True:
            if self._wanted is None:
                if len(self._buffer) < HEAD:
                    return
                self._wanted = int.from_bytes(self._buffer[:HEAD], "big")
                if self._wanted > FRAME_BYTES:
                    raise FrameError(f"a frame of {self._wanted:,} bytes; the most is {FRAME_BYTES:,}")
            end = HEAD + self._wanted
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[HEAD:end])
            del self._buffer[:end]
            self._wanted = None
            try:
                message = json.loads(body)
            except ValueError as error:
                raise FrameError(f"a frame that is no JSON: {error}") from error
            if not isinstance(message, dict):
                raise FrameError(f"a frame that is no message: {type(message).__name__}")
            yield message
