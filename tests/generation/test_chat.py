"""A conversation: what the model reads, what is remembered, and what is forgotten to make room."""

import json

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.generation.chat import conversation
from anyformer.generation.chat.conversation import Chat, transcript
from anyformer.generation.pipelines.source import Source, open_source
from tests.cli.small_run import small_run

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


def source(folder, template: str | None = TEMPLATE, **changes) -> Source:
    small_run(folder, {"context": 160} | changes)
    if template is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return open_source(folder, None, device=None, dtype=torch.float64, labels=None)


def expected(talk: Chat, text: str, new: int, **options) -> str:
    """What the model says after a text."""
    ids = torch.tensor([[0, *talk.source.tokenizer.encode(text)]]) if talk.plain else None
    if ids is None:
        ids = torch.tensor([talk.source.tokenizer.encode(text)])
    made = af.generate(talk.source.model, ids, max_new_tokens=new, tokenizer=talk.source.tokenizer, **options)
    return talk.source.tokenizer.decode(made[0, ids.shape[1] :].tolist())


def test_chat_answers_what_the_template_makes_of_all_turns(tmp_path):
    talk = Chat(source(tmp_path), system="be a cat")
    first = "".join(talk.say("the cat?", max_new_tokens=6))
    assert first == expected(talk, "[system]be a cat\n[user]the cat?\n[assistant]", 6)
    assert talk.messages[1:] == [{"role": "user", "content": "the cat?"}, {"role": "assistant", "content": first}]
    second = "".join(talk.say("the dog?", max_new_tokens=6))
    before = f"[system]be a cat\n[user]the cat?\n[assistant]{first}\n[user]the dog?\n[assistant]"
    assert second == expected(talk, before, 6)
    assert talk.count == 6
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "be a cat"}]


def test_chat_in_plain_is_a_transcript_that_ends_where_the_user_would_speak(tmp_path):
    talk = Chat(source(tmp_path, None), plain=True, system="a story")
    messages = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    assert transcript(messages) == "a\n\nUser: b\nAssistant: c\nAssistant:"
    said = "".join(talk.say("the cat", max_new_tokens=6))
    assert said == expected(talk, "a story\n\nUser: the cat\nAssistant:", 6).lstrip()


def test_chat_in_plain_does_not_show_the_part_that_the_user_has(tmp_path, monkeypatch):
    talk = Chat(source(tmp_path, None), plain=True)
    whole = "".join(talk.say("the cat", max_new_tokens=12))
    word = whole[3:6]
    talk.reset()
    # As if the user were called so.
    monkeypatch.setattr(talk, "_stops", (word,))
    said = "".join(talk.say("the cat", max_new_tokens=12))
    assert said == whole[: whole.index(word)]
    assert talk.turns[-1]["content"] == said.strip()


def test_chat_stopped_half_way_keeps_what_was_said(tmp_path):
    talk = Chat(source(tmp_path))
    pieces = talk.say("the cat", max_new_tokens=50)
    begun = next(pieces)
    pieces.close()
    assert talk.turns == [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": begun}]
    # Nobody listened, so nothing was said: the next question takes the place of that one.
    talk.say("the dog", max_new_tokens=50).close()
    list(talk.say("a mat", max_new_tokens=3))
    assert [turn["content"] for turn in talk.turns[:3]] == ["the cat", begun, "a mat"]
    assert len(talk.turns) == 4


def test_chat_that_outgrows_the_context_forgets_the_oldest_turns(tmp_path, monkeypatch):
    asked = []

    def spy(model, ids, **options):
        asked.append(ids.shape[1] + options["max_new_tokens"])
        return af.generate(model, ids, **options)

    monkeypatch.setattr(conversation, "generate", spy)
    talk = Chat(source(tmp_path, context=100))
    forgotten = 0
    for i in range(8):
        list(talk.say(f"the cat {i} sat on the mat", max_new_tokens=10))
        forgotten += talk.forgotten
        assert asked[-1] <= 100
        assert [turn["role"] for turn in talk.turns] == ["user", "assistant"] * (len(talk.turns) // 2)
    assert forgotten + len(talk.turns) // 2 == 8
    assert forgotten > 0
    before = list(talk.turns)
    with pytest.raises(
        InputError, match=r"that makes \d+ tokens, and this model is made for 100; say it in fewer words"
    ):
        talk.say("zebra " * 50, max_new_tokens=10)
    assert talk.turns == before


def test_chat_refuses_what_it_can_not_do(tmp_path):
    with pytest.raises(InputError, match="base model: it continues texts, and was not trained to answer"):
        Chat(source(tmp_path / "a", None))
    with pytest.raises(InputError, match="an encoder reads a text at once"):
        Chat(source(tmp_path / "b", topology="encoder"))
    with pytest.raises(InputError, match="a chat needs a decoder"):
        Chat(source(tmp_path / "c", topology="encoder-decoder", ids={"start": 0}))
    talk = Chat(source(tmp_path / "d"))
    with pytest.raises(InputError, match="there is nothing to answer"):
        talk.say(" \n", max_new_tokens=3)
    with pytest.raises(InputError, match="temperature"):
        talk.say("the", max_new_tokens=3, temperature=-1.0)
    assert talk.turns == []
