"""Tells what a model says from the tools that it calls, while its text is still coming."""

from collections.abc import Container

from anyformer.serve.tool_calls.formats import Call, ToolFormat


class ToolCallReader:
    """A stream of text in which calls may begin: what may be one is held back until it is known."""

    def __init__(self, form: ToolFormat, names: Container[str]) -> None:
        self._form, self._names = form, names
        self._held = ""
        """What may be, or belong to, a call."""
        self._said = False
        """Whether something was said before."""
        self.calls: list[Call] = []

    def push(self, piece: str) -> str:
        """Take more text; what can be shown of it."""
        self._held += piece
        at = self._form.held_from(self._held, self._said)
        shown, self._held = self._held[:at], self._held[at:]
        if not self._said and not shown.strip():
            # Blanks before a call are nobody's words.
            shown, self._held = "", shown + self._held
        self._said = self._said or bool(shown)
        return shown

    def end(self) -> str:
        """Nothing more comes: the calls are known, and what was held back beside them is text after all."""
        held, self._held = self._held, ""
        said, self.calls = self._form.read(held, self._names)
        return said
