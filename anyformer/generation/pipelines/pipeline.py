"""`pipeline`: a task by its name, on a model."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from anyformer.errors import InputError, nearest
from anyformer.generation.pipelines.feature_extraction import FeatureExtraction
from anyformer.generation.pipelines.fill_mask import FillMask
from anyformer.generation.pipelines.question_answering import QuestionAnswering
from anyformer.generation.pipelines.source import Source, open_source
from anyformer.generation.pipelines.text_classification import TextClassification
from anyformer.generation.pipelines.text_generation import PAIR, Answer, Summarization, TextGeneration, Translation
from anyformer.generation.pipelines.token_classification import TokenClassification
from anyformer.generation.pipelines.zero_shot_classification import ZeroShotClassification

TASKS: dict[str, Callable[[Source], Any]] = {
    "text-generation": TextGeneration,
    "fill-mask": FillMask,
    "text-classification": TextClassification,
    "token-classification": TokenClassification,
    "question-answering": QuestionAnswering,
    "zero-shot-classification": ZeroShotClassification,
    "feature-extraction": FeatureExtraction,
    "translation": Translation,
    "summarization": Summarization,
    "text2text-generation": Answer,
    "sentiment-analysis": TextClassification,
    "ner": TokenClassification,
}


def pipeline(
    task: str,
    model: Any = None,
    tokenizer: Any = None,
    *,
    device: str | int | torch.device | None = None,
    dtype: torch.dtype | None = None,
    labels: Sequence[str] | None = None,
    src_lang: str | None = None,
    tgt_lang: str | None = None,
) -> Any:
    """A callable that takes texts and gives answers, as lists of tables under the familiar names.

    A text alone gives its answer, a list of texts a list of answers in their order; texts of like length run together.

    Args:
        task: text-generation, fill-mask, text-classification (sentiment-analysis), token-classification (ner),
            question-answering, zero-shot-classification, feature-extraction, translation (also translation_en_to_de),
            summarization or text2text-generation.
        model: A folder that `save` wrote, a Hugging Face directory, a name on the hub, or a model.
        tokenizer: A tokenizer, or the path of one; None: the one in the model's folder. Where the source has a vocabulary
            of its own: two of them, (source, target).
        device: Where the model runs. A model that is given is moved there.
        dtype: What it computes in. A model that is given is converted.
        src_lang: For translation by a model of many languages: the language of the texts, as its tokenizer calls it (en_XX,
            eng_Latn). It may be given with the texts instead.
        tgt_lang: The language of the answers.
        labels: Names of a head's classes, in their order; None: those of the spec, else LABEL_0, LABEL_1 ...
    """
    if not isinstance(task, str) or (task not in TASKS and not PAIR.fullmatch(task)):
        raise InputError(f"task: {task!r} is unknown{nearest(str(task), TASKS)}")
    source = open_source(model, tokenizer, device=device, dtype=dtype, labels=labels)
    if task == "translation" or PAIR.fullmatch(task):
        return Translation(source, task, src_lang=src_lang, tgt_lang=tgt_lang)
    if src_lang is not None or tgt_lang is not None:
        raise InputError(f"src_lang, tgt_lang: are for translation, not for {task}")
    return TASKS[task](source)
