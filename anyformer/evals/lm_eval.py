"""Our models in EleutherAI's lm-evaluation-harness (`pip install lm-eval`), under the name `anyformer`.

On the command line, with all of the harness's own options:

    python -m anyformer.evals.lm_eval run --model anyformer --model_args path=runs/quickstart --tasks lambada_openai

In Python:

    import lm_eval
    from anyformer.evals.lm_eval import lm_eval_model

    lm_eval.simple_evaluate(model=lm_eval_model("runs/quickstart"), tasks=["lambada_openai"])

`path` is a run, a folder of anyformer's, a Hugging Face directory or org/name. `device` and `dtype` are as in `load`;
`batch_tokens` are read at once, whatever the harness's batch_size says: rows of similar length share a batch. A request
that is longer than the model's context loses its beginning. Where there is no text before a continuation, the token
`prefix_token_id` is read: the tokenizer's bos, or eos, unless given.

A published folder gives the figures of the harness's own adapter, `--model hf`: `bench/harness.py` compares them.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from anyformer.errors import CapabilityError, InputError, nearest
from anyformer.registry import installed

PACKAGE = "lm_eval"
NAME = "anyformer"
NEW = 256
"""Tokens that an answer has at most, unless its task says otherwise."""
DTYPES = ("float64", "float32", "bfloat16", "float16")
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""The harness's names for how many tokens an answer has at most; the first that says something counts."""
SAMPLING = (
    "do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "min_new_tokens", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "logit_bias", "no_repeat_ngram_size", "bad_words", "num_beams",
    "length_penalty", "num_beam_groups", "diversity_penalty", "early_stopping", "penalty_alpha",
)  # fmt: skip
"""What a task may say of how its answers are chosen, by the names of `generate`."""
DRAWN = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")
"""Those of no use where nothing is drawn."""
HARNESS = ("batch_size", "max_batch_size", "device")
"""What the harness passes to every model beside the user's own arguments."""


@cache
def lm_eval_class() -> Any:
    """The class that the harness calls, registered there as `anyformer`."""
    try:
        api, registry = installed(f"{PACKAGE}.api.model"), installed(f"{PACKAGE}.api.registry")
        # The harness fills its own table only while that is empty.
        installed(f"{PACKAGE}.models")
    except ImportError as error:
        raise CapabilityError(f"the harness is not here ({error}): pip install lm-eval") from error

    class HarnessModel(api.LM):
        """A decoder for the harness; all work is done by `LoglikelihoodModel`."""

        def __init__(self, path: str = "", **given: Any) -> None:
            super().__init__()
            self.model = open_model(path, **given)
            self._device = self.model.device

        def loglikelihood(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            return self._cached("loglikelihood", requests, self.model.loglikelihood([each.args for each in requests]))

        def loglikelihood_rolling(self, requests: Sequence[Any], **_: Any) -> list[float]:
            found = self.model.loglikelihood_rolling([request.args[0] for request in requests])
            return self._cached("loglikelihood_rolling", requests, found)

        def generate_until(self, requests: Sequence[Any], **_: Any) -> list[str]:
            return self._cached("generate_until", requests, answers(self.model, [each.args for each in requests]))

        def _cached(self, what: str, requests: Sequence[Any], found: list[Any]) -> list[Any]:
            """The answers, which the harness may keep for another time."""
            for request, answer in zip(requests, found, strict=True):
                self.cache_hook.add_partial(what, request.args, answer)
            return found

    return registry.register_model(NAME)(HarnessModel)


def lm_eval_model(path: str, **given: Any) -> Any:
    """The model in a folder, for `lm_eval.simple_evaluate(model=...)`."""
    return lm_eval_class()(path, **given)


def open_model(
    path: str,
    *,
    dtype: str | None = None,
    batch_tokens: int | None = None,
    prefix_token_id: int | None = None,
    **rest: Any,
) -> Any:
    """The model and tokenizer in a folder, ready to be asked."""
    import torch

    from anyformer.data.tokenizer import tokenizer
    from anyformer.evals.loglikelihood import LoglikelihoodModel
    from anyformer.families.io import find_folder, load
    from anyformer.generation.pipelines.source import stop_ids

    known = ("path", "dtype", "batch_tokens", "prefix_token_id", *HARNESS)
    wrong = [f"{name} is no argument of this model{nearest(name, known)}" for name in rest if name not in HARNESS]
    if not path:
        wrong.append("path is missing: the folder of a model, such as --model_args path=runs/quickstart")
    if dtype is not None and dtype not in DTYPES:
        wrong.append(f"dtype: {dtype!r} is unknown{nearest(dtype, DTYPES)}")
    if wrong:
        raise InputError("; ".join(wrong))
    folder = find_folder(path)
    device = rest.get("device")
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        # The harness's command line says cuda:0 when nobody has said anything.
        warnings.warn(f"torch finds no CUDA device here, so the model is on the CPU and not on {device}", stacklevel=2)
        device = "cpu"
    model = load(folder, device, None if dtype is None else getattr(torch, dtype))
    tokens, prefix = (None if each is None else int(each) for each in (batch_tokens, prefix_token_id))
    return LoglikelihoodModel(model, tokenizer(folder), tokens=tokens, prefix=prefix, stop=stop_ids(model, folder))


def answers(model: Any, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """What the model says to each context; those that are asked in one way share batches."""
    alike: dict[str, list[int]] = {}
    for i, (_, wanted) in enumerate(requests):
        alike.setdefault(repr(sorted(wanted.items(), key=lambda item: item[0])), []).append(i)
    found = [""] * len(requests)
    for some in alike.values():
        options = generation_options(requests[some[0]][1], model.room)
        for i, text in zip(some, model.generate_until([requests[i][0] for i in some], **options), strict=True):
            found[i] = text
    return found


def generation_options(wanted: Mapping[str, Any], room: int) -> dict[str, Any]:
    """The harness's words for how to go on, in ours."""
    until = wanted.get("until") or []
    said = next((wanted[name] for name in LENGTHS if wanted.get(name) is not None), None)
    new = NEW if said is None else int(said)
    options = {name: wanted[name] for name in SAMPLING if wanted.get(name) is not None}
    known = ("until", *LENGTHS, *SAMPLING)
    wrong = [f"{name} is not known here{nearest(name, known)}" for name in wanted if name not in known]
    if wrong:
        raise InputError(f"generation_kwargs of a task: {'; '.join(wrong)}")
    if not options.get("do_sample", bool(options.get("temperature"))):
        # Tasks say temperature 0 and mean the likeliest token.
        kept = ("top_k",) if "penalty_alpha" in options else ()
        options = {name: value for name, value in options.items() if name in kept or name not in DRAWN}
    # Unless a task says otherwise, at least half of the room is left to the question.
    most = max(1, room // 2 if said is None or new >= room else room - 1)
    if new > most and said is not None:
        warnings.warn(
            f"a task asks for {new} new tokens; this model has room for {room}, so {most} are made", stacklevel=2
        )
    return {"until": [until] if isinstance(until, str) else list(until), "new": min(new, most), **options}


def main() -> None:
    """The harness's own command line, with our model among its own."""
    lm_eval_class()
    installed(f"{PACKAGE}.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
