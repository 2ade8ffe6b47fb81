"""The bytes that single tokens stand for within a text, and how they are written down where a text is wanted."""

from collections.abc import Iterable

from anyformer.data.tokenizer import Tokenizer


def _byte_signs() -> dict[str, int]:
    """The sign with which byte-level BPE writes each byte: itself where it can be seen, else one from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


SIGNS = _byte_signs()


class TokenBytes:
    """Looks up tokens of one tokenizer, each once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {token: name.encode() for name, token in tokenizer.specials.items()}
        self._labels: dict[int, str] = {}
        self._letter = tokenizer.encode("a")
        self._before = tokenizer.decode(self._letter)

    def __call__(self, token: int) -> bytes:
        """The bytes of a token inside of a text, with the blank that it begins with; of a special one its name."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._bytes(token)
        return found

    def label(self, token: int) -> str:
        r"""The text of a token; of one that is no whole character its bytes, as in bytes:\xe2\x82."""
        found = self._labels.get(token)
        if found is None:
            raw = self(token)
            try:
                found = raw.decode()
            except UnicodeDecodeError:
                found = "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            self._labels[token] = found
        return found

    def labels(self, tokens: Iterable[int]) -> list[str]:
        """Texts of different tokens of which no two are the same: of like ones all but the first are `token_id:N`."""
        used: set[str] = set()
        found: list[str] = []
        for token in tokens:
            name = self.label(token)
            if name in used:
                name = f"token_id:{token}"
            used.add(name)
            found.append(name)
        return found

    @property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max((len(self(token)) for token in range(self._tokenizer.vocab)), default=1)

    def _bytes(self, token: int) -> bytes:
        tokenizer = self._tokenizer
        spelled = tokenizer.inner.id_to_token(token)
        if spelled is None:
            return b""
        if token in tokenizer.byte_tokens:
            return bytes([int(spelled[3:5], 16)])
        if tokenizer.spells_bytes and all(sign in SIGNS for sign in spelled):
            return bytes(SIGNS[sign] for sign in spelled)
        # Decoders drop the blank at the beginning of a text, so a token is read behind another one.
        after = tokenizer.decode([*self._letter, token])
        piece = after[len(self._before) :] if after.startswith(self._before) else tokenizer.decode([token])
        return (piece or tokenizer.decode([token], specials=True)).encode()
