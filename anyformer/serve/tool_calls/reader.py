"""Tells what a model says from the tools that it calls, while its text is still coming."""

from anyformer.serve.tool_calls.formats import Call, ToolFormat


class ToolCallReader:
    """A stream of text in which calls may begin: what may be one is held back until it is known."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._held = ""
        """What may be, or belong to, a call."""
        self._said = False
        """Whether something was said before: a bare JSON object is a call only at the very beginning."""
        self.calls: list[Call] = []

    def push(self, piece: str) -> str:
        """Take more text; what can be shown of it."""
        self._held += piece
        begin = self._form.begin
        at = self._held.find(begin)
        if at < 0:
            keep = next(
                (n for n in range(min(len(self._held), len(begin) - 1), 0, -1) if self._held.endswith(begin[:n])), 0
            )
            at = len(self._held) - keep
        if begin == "{" and (self._said or self._held[:at].strip()):
            at = len(self._held)
        shown, self._held = self._held[:at], self._held[at:]
        if not self._said and not shown.strip():
            # Blanks before a call are nobody's words.
            shown, self._held = "", shown + self._held
        self._said = self._said or bool(shown)
        return shown

    def end(self) -> str:
        """Nothing more comes: the calls are known, or what was held back is text after all."""
        held, self._held = self._held, ""
        begin = held.find(self._form.begin)
        self.calls = self._form.read(held[begin:]) if begin >= 0 else []
        return "" if self.calls else held
