"""What a model makes of each token, or of a whole text: feature-extraction."""

from collections.abc import Sequence
from typing import Any

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import Reader, Row, check_text, listed
from anyformer.generation.pipelines.sentence import SentenceModules, read_sentence
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import without_head


class FeatureExtraction(Reader):
    """`pipe(text)`: the last states of its tokens, as nested lists (1, tokens, width).

    Of a folder of sentence-transformers it is one vector for each text, as its modules make it.
    """

    def __init__(self, source: Source) -> None:
        if source.model.spec.embed.reads != "input_ids":
            raise InputError(f"feature-extraction: this model reads {source.model.spec.embed.reads}, and no text")
        super().__init__(source, without_head(source.model))
        if source.model.spec.head.pools:
            # It would leave one state of each text; without it there are all.
            self.model.spec = source.model.spec.vary({"head": {"kind": "none"}, "loss": {}})
        self.sentence = read_sentence(source.folder, next(source.model.parameters()))
        self.most = None if self.sentence is None else self.sentence.most

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        return_tensors: bool = False,
        batch_size: int | None = None,
        truncation: bool = False,
    ) -> Any:
        """The states of a text, or of each text of a list; of an encoder-decoder, its encoder's.

        Args:
            inputs: Texts.
            prompt: Written before each text, such as "query: ". Of a folder of sentence-transformers only.
            prompt_name: The name of one of its prompts; None: its default prompt, if it has one.
            return_tensors: Tensors on the CPU instead of lists: (1, tokens, width), or (width) of sentence-transformers.
            batch_size: Texts at once.
            truncation: Cut texts that are too long. Those of sentence-transformers always are.
        """
        if self.sentence is not None:
            return self._vectors(
                self.sentence, inputs, self.sentence.prompt(prompt, prompt_name), return_tensors, batch_size
            )
        if prompt is not None or prompt_name is not None:
            raise InputError("prompt, prompt_name: belong to folders of sentence-transformers; write it into the texts")

        def answer(out: Any, b: int, row: Row) -> Any:
            states_BTD = out.hidden if out.encoder_states is None else out.encoder_states
            states_1TD = states_BTD[b : b + 1, : len(row.ids)].cpu()
            return states_1TD.clone() if return_tensors else states_1TD.tolist()

        return self.read(inputs, answer, batch_size=batch_size, truncation=truncation)

    def _vectors(
        self, sentence: SentenceModules, inputs: Any, prompt: str, tensors: bool, batch_size: int | None
    ) -> Any:
        """One vector for each text."""
        given, alone = listed(inputs)
        texts = [prompt + check_text(text, i) for i, text in enumerate(given)]
        if sentence.lower:
            texts, prompt = [text.lower() for text in texts], prompt.lower()
        before = self._prompt_tokens(prompt)

        def answer(out: Any, b: int, row: Row) -> Any:
            states_BTD = out.hidden if out.encoder_states is None else out.encoder_states
            vector = sentence.vector(states_BTD[b, : len(row.ids)], before).cpu()
            return vector if tensors else vector.tolist()

        found = self.read(texts, answer, batch_size=batch_size, truncation=True)
        return found[0] if alone else found

    def _prompt_tokens(self, prompt: str) -> int:
        """Tokens of a prompt, with what the template puts before it and without what it puts after."""
        if not prompt:
            return 0
        encoding = self.source.reader.inner.encode(prompt)
        special = encoding.special_tokens_mask
        return len(encoding.ids) - (1 if special and special[-1] else 0)
