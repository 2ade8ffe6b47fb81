"""Texts that a model writes: text-generation, and text2text-generation, translation and summarization."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from anyformer.data.tokenizer import Tokenizer, prompt_ids
from anyformer.errors import InputError
from anyformer.generation.chat.template import check_messages, is_chat
from anyformer.generation.generate import generate
from anyformer.generation.params.generation_request import check_model, context_length
from anyformer.generation.params.sampling_params import SamplingParams, read_params
from anyformer.generation.params.stop import StopText
from anyformer.generation.pipelines.rows import batches, check_size, check_text, listed, padded, read_rows
from anyformer.generation.pipelines.search_options import search_options
from anyformer.generation.pipelines.source import Source
from anyformer.generation.text.detokenizer import detokenizer

NEW = 256
"""New tokens at most, unless told otherwise."""
RENAMED = {"stop_sequence": "stop", "stop_strings": "stop"}
OTHERS = (
    "return_full_text",
    "stream",
    "batch_size",
    "return_tensors",
    "prefix",
    "truncation",
    "continue_final_message",
)


class Asked(NamedTuple):
    """One prompt."""

    ids: list[int]
    given: Any
    """The text or the messages that it comes from."""
    continues: bool = False
    """Whether the last message is to be continued."""


class Writer:
    """What the tasks share that write: options, batches, and texts from ids."""

    task = "text-generation"
    key = "generated_text"

    def __init__(self, source: Source) -> None:
        check_model(source.model.spec)
        self.source = source
        self.two = source.model.spec.topology == "encoder-decoder"

    def write(
        self, asked: Sequence[Asked], options: Mapping[str, Any], batch_size: Any
    ) -> list[list[tuple[list[int], str]]]:
        """New ids of each prompt, and their text without what stops it; one of each for every answer."""
        size = check_size(batch_size)
        read, more = self._options(options)
        found: list[list[tuple[list[int], str]]] = [[] for _ in asked]
        # Rows of one batch take the same number of steps, so those with less room than asked for run by themselves, and
        # where positions depend on the length, those of one length: no answer depends on the prompts beside it.
        alike = [
            (self._new(len(each.ids), read.max_new_tokens), len(each.ids) if self.source.model.reads_length else 0)
            for each in asked
        ]
        for kind in dict.fromkeys(alike):
            same = [i for i, its in enumerate(alike) if its == kind]
            for batch in batches([len(asked[i].ids) for i in same], size):
                chosen = [same[b] for b in batch]
                rows = self._together([asked[i] for i in chosen], kind[0], self._seed(read, chosen), more)
                for b, i in enumerate(chosen):
                    for ids in rows[b * read.n : (b + 1) * read.n]:
                        text = self._reader(asked[i], read)
                        found[i].append((ids, text.push(*ids) + text.end()))
        return found

    def stream(self, given: Sequence[Asked], options: Mapping[str, Any], *, alone: bool) -> Iterator[str]:
        """Pieces of one answer, as they come."""
        if not alone:
            raise InputError("stream: one prompt at a time is streamed; give one text, or leave stream out")
        asked = given[0]
        read, more = self._options(options)
        new, seed = self._new(len(asked.ids), read.max_new_tokens), self._seed(read, [0])
        steps = self._generate([asked.ids], stream=True, max_new_tokens=new, seed=seed, **more)
        return self._reader(asked, read).pieces(steps)

    def _generate(self, ids: list[list[int]], **options: Any) -> Any:
        return generate(self.source.model, self.source.to_device(ids), tokenizer=self.source.tokenizer, **options)

    def _together(self, asked: Sequence[Asked], new: int | None, seed: Any, more: Mapping[str, Any]) -> list[list[int]]:
        """New ids of prompts that run at once."""
        ids, mask = padded([each.ids for each in asked], self.source.model.spec.input_pad or 0, left=not self.two)
        mask_BT = self.source.to_device(mask)
        made = self._generate(ids, attention_mask=mask_BT, details=True, max_new_tokens=new, seed=seed, **more)
        rows = made.ids[:, 1 if self.two else len(ids[0]) :].tolist()
        return [row[:length] for row, length in zip(rows, made.lengths, strict=True)]

    def _reader(self, asked: Asked, read: SamplingParams) -> StopText:
        """What new ids say, after those of the prompt."""
        stops = [each for each in _listed(read.stop) if isinstance(each, str)]
        return StopText(
            detokenizer(self.source.tokenizer, () if self.two else asked.ids), stops, least=read.min_new_tokens
        )

    def _seed(self, read: SamplingParams, chosen: Sequence[int]) -> Any:
        """Each prompt has a seed of its own, whatever batch it comes into."""
        return [read.seed + i for i in chosen] if type(read.seed) is int else read.seed

    def _options(self, options: Mapping[str, Any]) -> tuple[SamplingParams, dict[str, Any]]:
        """What was asked for, and what of it `generate` is told for all prompts alike."""
        given = {RENAMED.get(name, name): value for name, value in options.items()}
        read = read_params(given, others=OTHERS, caller=f"pipeline({self.task!r})")
        if read.seed is not None and type(read.seed) is not int:
            raise InputError("seed: expected one whole number; each prompt draws with its own, seed + its place")
        more = {name: value for name, value in given.items() if name not in ("seed", "max_new_tokens")}
        stops = _listed(read.stop)
        # Texts come on top of the ids that end an answer; ids replace them.
        own = read.stop is None or (stops and all(isinstance(each, str) for each in stops))
        if own and read.ignore_eos is not True:
            more["stop"] = [*self.source.stop, *stops]
        return read, more

    def _new(self, prompt: int, most: int | None) -> int | None:
        """New tokens for a prompt of so many."""
        if most is not None:
            return most
        size, hard = context_length(self.source.model)
        begun = 1 if self.two else prompt
        left = size - begun
        if left < 1 and hard:
            raise InputError(
                f"a prompt of {begun} tokens fills the {size} that this model has positions for; shorten it"
            )
        return min(NEW, left) if left > 0 else NEW


class TextGeneration(Writer):
    """`pipe(text)`: `[{"generated_text": ...}]`; a chat is a list of messages."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if self.two:
            raise InputError(
                "text-generation: continues a text, and an encoder-decoder answers one; use text2text-generation"
            )

    def __call__(
        self,
        inputs: Any,
        *,
        return_full_text: bool = True,
        return_tensors: bool = False,
        continue_final_message: bool | None = None,
        stream: bool = False,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Continue a text or a chat, or each of a list.

        Args:
            inputs: A text, a chat such as `[{"role": "user", "content": "Hello"}]`, or a list of texts or of chats.
            return_full_text: False leaves the prompt out.
            return_tensors: Ids (`generated_token_ids`, the prompt's too) instead of texts.
            continue_final_message: Go on with the last message instead of answering it; None: if it is the assistant's.
            stream: Yield the new text in pieces; of one prompt only.
            batch_size: Prompts at once.
            options: Of `generate`: max_new_tokens (at most 256 unless said), do_sample, temperature, top_k, top_p,
                num_beams, num_return_sequences, stop (ids and texts), seed, ...
        """
        chat = is_chat(inputs)
        given, alone = ([inputs], True) if chat else listed(inputs, "a text, a chat")
        asked = [self._ask(each, i, continue_final_message) for i, each in enumerate(given)]
        if stream:
            return self.stream(asked, options, alone=alone)
        made = self.write(asked, options, batch_size)
        found = [
            [{"generated_token_ids": [*each.ids, *ids]} if return_tensors else {self.key: self._whole(each, text, return_full_text)} for ids, text in answers]
            for each, answers in zip(asked, made, strict=True)
        ]  # fmt: skip
        return found[0] if alone else found

    def _ask(self, given: Any, i: int, continues: bool | None) -> Asked:
        if not is_chat(given):
            text = check_text(given, i)
            return Asked([*prompt_ids(self.source.model.spec, self.source.tokenizer, text)], text)
        template = self.source.template
        if template is None:
            raise InputError(
                f"input {i}: is a chat, and this model has no chat template (no chat_template.jinja and no chat_template in "
                "tokenizer_config.json): it is a base model, which continues texts; give a text"
            )
        messages = check_messages(given)
        goes_on = messages[-1]["role"] == "assistant" if continues is None else continues
        ids = template.ids(self.source.tokenizer, messages, continue_final_message=goes_on)
        return Asked(ids, messages, goes_on)

    def _whole(self, asked: Asked, text: str, full: bool) -> Any:
        """The answer, after what it answers if that is asked for."""
        if not full:
            return text
        if isinstance(asked.given, str):
            return asked.given + text
        if asked.continues:
            *before, last = asked.given
            return [*before, last | {"content": last["content"] + text}]
        return [*asked.given, {"role": "assistant", "content": text}]


class Answer(Writer):
    """`pipe(text)`: `[{"generated_text": ...}]`, what an encoder-decoder answers."""

    task = "text2text-generation"

    def __init__(self, source: Source, task: str | None = None) -> None:
        super().__init__(source)
        self.task = task or self.task
        if not self.two:
            raise InputError(
                f"{self.task}: needs an encoder-decoder, and this model is a {source.model.spec.topology}; "
                "a decoder is asked with text-generation"
            )

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        prefix: str | None = None,
        truncation: bool = False,
        stream: bool = False,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Answer a text, or each of a list.

        Args:
            inputs: Texts.
            prefix: Written before each text, such as "summarize: "; None: what the model's config.json says for the task.
            truncation: Cut texts that are too long.
            stream: Yield the answer in pieces; of one text only.
            batch_size: Texts at once.
            options: Of `generate`: max_new_tokens (at most 256 unless said), num_beams, do_sample, temperature, ...
        """
        given, alone = listed(inputs)
        before = self._prefix() if prefix is None else prefix
        texts = [before + check_text(text, i) for i, text in enumerate(given)]
        rows = read_rows(self.source, texts, truncation=truncation, reader=self.reader())
        asked = [Asked(row.ids, row.text) for row in rows]
        options = search_options(self.source.generation, self.source.model.spec.vocab, options, stream=stream) | options
        if stream:
            return self.stream(asked, options, alone=alone)
        made = self.write(asked, options, batch_size)
        found = [[{self.key: text} for _, text in answers] for answers in made]
        # One answer for each text is the usual case, and comes without a list around it.
        flat = all(len(answers) == 1 for answers in found)
        return found[0] if alone else [answers[0] for answers in found] if flat else found

    def reader(self) -> Tokenizer | None:
        """The tokenizer of the texts, unless it is the source's."""
        return None

    def _prefix(self) -> str:
        """What a published model was trained to read before a text of this task."""
        known = self.source.config.get("task_specific_params")
        own = known.get(self.task) if isinstance(known, dict) else None
        found = own.get("prefix") if isinstance(own, dict) else None
        return found if isinstance(found, str) else ""


class Translation(Answer):
    """`pipe(text)`: `[{"translation_text": ...}]`."""

    task, key = "translation", "translation_text"

    def __init__(
        self, source: Source, task: str | None = None, *, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> None:
        super().__init__(source, task)
        self.languages = src_lang, tgt_lang
        self.many = bool(source.reader.spoken)
        if not self.many and self.languages != (None, None):
            raise InputError(
                "src_lang, tgt_lang: the tokenizer of this model has no tokens of languages: it translates one pair, or is "
                "told the languages in the text"
            )
        for code in filter(None, self.languages):
            source.reader.language(code)

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **options: Any,
    ) -> Any:
        """Translate a text, or each of a list.

        Args:
            inputs: Texts.
            src_lang: Their language, if not the one that `pipeline` was given.
            tgt_lang: That of the answers.
            options: Those of text2text-generation.
        """
        given = (src_lang, tgt_lang)
        if given == (None, None):
            return self._translate(inputs, **options)
        pair = [new or old for new, old in zip(given, self.languages, strict=True)]
        return Translation(self.source, self.task, src_lang=pair[0], tgt_lang=pair[1])._translate(inputs, **options)

    def _translate(self, inputs: str | Sequence[str], **options: Any) -> Any:
        source, target = self.languages
        if self.many and (source is None or target is None):
            raise InputError(
                "translation: this model is one of many languages; say which: src_lang='...', tgt_lang='...', as its tokenizer "
                "calls them"
            )
        forced: dict[str, Any] = (
            {} if target is None else {"forced_bos_token_id": self.source.tokenizer.language(target)}
        )
        return super().__call__(inputs, **forced | options)

    def reader(self) -> Tokenizer | None:
        source = self.languages[0]
        return None if source is None else self.source.reader.speaking(source)


class Summarization(Answer):
    """`pipe(text)`: `[{"summary_text": ...}]`."""

    task, key = "summarization", "summary_text"


def _listed(stop: Any) -> list[Any]:
    return [] if stop is None else [stop] if isinstance(stop, str | int) or not isinstance(stop, Iterable) else [*stop]


PAIR = re.compile(r"translation_[a-z]{2,3}_to_[a-z]{2,3}")
"""translation_en_to_de, by which a model's config may name what is written before a text."""
