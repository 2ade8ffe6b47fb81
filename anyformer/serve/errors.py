"""What a request is answered with when it can't be served: a status and OpenAI's error object."""

from collections.abc import Mapping
from typing import Any

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
"""The `type` of an error, unless it says otherwise."""


class ApiError(Exception):
    """Ends one request with a status. `param` names the field that is wrong, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = type or TYPES.get(status, "server_error")
        self.headers = dict(headers or {})
        self.more = more
        """Further keys of the error object, such as n_ctx."""

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        known = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": known | self.more}


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, param=param, code=code)


def too_long(prompt: int, room: int, *, new: int = 0, param: str | None = None) -> ApiError:
    """400: more tokens than the server gives a sequence."""
    asked = f"a prompt of {prompt:,} tokens" + (f" and {new:,} new ones" if new else "")
    return ApiError(
        400,
        f"{asked}; this server has room for {room:,} tokens in all: shorten the prompt or ask for fewer tokens",
        type="exceed_context_size_error", code="context_length_exceeded", param=param or ("max_tokens" if new else "prompt"),
        n_prompt_tokens=prompt, n_ctx=room,
    )  # fmt: skip


def busy(message: str, seconds: float) -> ApiError:
    """429: come again later."""
    wait = str(max(1, min(120, round(seconds))))
    return ApiError(429, f"{message}; try again in {wait} s", code="rate_limit_exceeded", headers={"retry-after": wait})


def draining(seconds: float) -> ApiError:
    """503: the server is about to end."""
    wait = str(max(1, round(seconds)))
    return ApiError(
        503, f"the server is shutting down; try again in {wait} s", code="shutting_down", headers={"retry-after": wait}
    )
