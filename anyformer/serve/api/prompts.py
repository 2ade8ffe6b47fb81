"""From prompts as llama.cpp takes them to token ids."""

from anyformer.serve.api.context import Context
from anyformer.serve.errors import too_long
from anyformer.serve.fields.prompts import Prompt, Prompts


async def prompt_rows(context: Context, prompts: Prompts, where: str) -> list[list[int]]:
    """The ids of each prompt, none of which is longer than the server has room for."""
    rows: list[list[int]] = []
    for i, each in enumerate(prompts.each):
        ids = await read_prompt(context, each, f"{where}[{i}]" if prompts.many else where)
        if len(ids) > context.room:
            raise too_long(len(ids), context.room, param=where)
        rows.append(ids)
    return rows


async def read_prompt(context: Context, prompt: Prompt, where: str) -> list[int]:
    """The ids of one prompt. Of texts between ids only one at the very beginning gets what texts begin with."""
    texts = context.texts
    if isinstance(prompt, str):
        return await texts.prompt(prompt, context.room, where=where)
    ids: list[int] = []
    for i, each in enumerate(prompt):
        if isinstance(each, int):
            ids.append(each)
        elif each:
            ids += await texts.prompt(each, context.room, specials=i == 0, where=f"{where}[{i}]")
        if len(ids) > context.room:
            # Texts that are left have a token at least, and are not read to find out how many.
            raise too_long(len(ids) + sum(one != "" for one in prompt[i + 1 :]), context.room, param=where)
    return ids
