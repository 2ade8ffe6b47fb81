"""BLEU and chrF of translations, as sacrebleu computes them: figures that can be compared with published ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.errors import CapabilityError, InputError
from anyformer.registry import installed

PACKAGE = "sacrebleu"


@dataclass(frozen=True, kw_only=True)
class Bleu:
    """How near translations come to their references. Figures are from 0 to 100."""

    bleu: float
    precisions: tuple[float, ...]
    """Of runs of one to four tokens."""
    brevity_penalty: float
    chrf: float
    signature: str
    """What sacrebleu did, for who wants to do the same."""
    chrf_signature: str

    def data(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "bleu": self.bleu, "precisions": list(self.precisions), "brevity_penalty": self.brevity_penalty,
            "signature": self.signature, "chrf": self.chrf, "chrf_signature": self.chrf_signature,
        }  # fmt: skip


def judge() -> Any:
    """The package that judges; an error that says what to install if it is not there."""
    try:
        return installed(f"{PACKAGE}.metrics")
    except ImportError as error:
        raise CapabilityError(
            f"BLEU needs a package that is not here ({error}): pip install {PACKAGE}, or translate nothing, with "
            "--num-beams 0"
        ) from error


def bleu(translations: Sequence[str], references: Sequence[Sequence[str]]) -> Bleu:
    """Translations against one reference or more for each."""
    if len(translations) != len(references) or not translations or not all(references):
        raise InputError(
            f"{len(translations)} translations and references for {sum(map(bool, references))}; each needs at least one"
        )
    metrics = judge()
    most = max(map(len, references))
    # One list for each reference of a sentence; None where a sentence has no more of them.
    columns = [[some[i] if i < len(some) else None for some in references] for i in range(most)]
    counted, spelled = metrics.BLEU(), metrics.CHRF()
    found, letters = (
        counted.corpus_score(list(translations), columns),
        spelled.corpus_score(list(translations), columns),
    )
    return Bleu(
        bleu=float(found.score), precisions=tuple(map(float, found.precisions)), brevity_penalty=float(found.bp),
        chrf=float(letters.score), signature=str(counted.get_signature()), chrf_signature=str(spelled.get_signature()),
    )  # fmt: skip
