"""Embeddings and looks: beside those who generate, and equal to what the model says by itself."""

import asyncio
import threading

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.data.tokenizer import tokenizer, train_bpe
from anyformer.explain.prompt import trace_ids, trace_prompt
from anyformer.families.io import load
from anyformer.model.eval_mode import without_head
from anyformer.serve.errors import ApiError
from tests.contract.contracts import randomise
from tests.generation.small_models import bert_words, folder_of, masked_lm
from tests.serve.conftest import SPEC, TEXT
from tests.serve.engines import MENU, PROMPTS, ask, assert_same, assert_serves_all, expected, gathered, local, outputs

ROWS = [[(3 * i + j) % 200 + 1 for j in range(1 + 7 * i % 23)] for i in range(17)]


def by_itself(folder, row):
    """States of one row, alone and without padding."""
    body = without_head(load(folder, "cpu", torch.float64).eval())
    with torch.no_grad():
        return body(torch.tensor([row])).hidden[0]


POOLED = {
    "mean": lambda states_TD: states_TD.mean(0),
    "cls": lambda states_TD: states_TD[0],
    "last": lambda states_TD: states_TD[-1],
    "none": lambda states_TD: states_TD,
}


@pytest.mark.parametrize("pooling", sorted(POOLED))
@pytest.mark.parametrize("normalize", [False, True])
def test_embeddings_of_ragged_rows_equal_a_plain_pass_over_each(model_folder, pooling, normalize):
    async def scenario():
        async with local(model_folder, max_num_batched_tokens=40) as client:
            return await client.embed(ROWS, pooling=pooling, normalize=normalize)

    found = asyncio.run(scenario())
    for row, vector in zip(ROWS, found, strict=True):
        want = POOLED[pooling](by_itself(model_folder, row))
        want = F.normalize(want, dim=-1) if normalize else want
        torch.testing.assert_close(torch.tensor(vector, dtype=torch.float64), want, rtol=1e-9, atol=1e-9)


def test_embeddings_beside_generation_change_neither(model_folder):
    async def scenario():
        async with local(model_folder, max_num_batched_tokens=32) as client:
            alone = await client.embed(ROWS, pooling="mean", normalize=True)
            jobs = [asyncio.ensure_future(client.embed(ROWS, pooling="mean", normalize=True)) for _ in range(3)]
            await assert_serves_all(client, model_folder)
            for found in await asyncio.gather(*jobs):
                assert found == alone
            await outputs(ask(client, [4], max_new_tokens=1))
            assert client.snapshot["embedded_tokens"] == 4 * sum(map(len, ROWS))

    asyncio.run(scenario())


def test_embeddings_that_can_not_be_are_refused_and_cancelled_ones_are_dropped(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            for rows, pooling, words in (
                ([[1], []], "mean", "input 1: has no tokens"),
                ([[1] * 97], "mean", "this server reads 96"),
                ([[99999]], "mean", "not below the vocabulary"),
                ([[-1]], "mean", "not below the vocabulary"),
                ([[1]], "max", "pooling"),
                ([[1]], "model", "pooling"),
            ):
                with pytest.raises(ApiError, match=words) as refused:
                    await client.embed(rows, pooling=pooling, normalize=True)
                assert refused.value.status == 400
            task = asyncio.ensure_future(client.embed([[1, 2]] * 200, pooling="mean", normalize=True))
            await asyncio.sleep(0)
            task.cancel()
            assert len(await client.embed([[1, 2]], pooling="mean", normalize=True)) == 1

    asyncio.run(scenario())


def test_embeddings_beyond_the_queue_are_refused(model_folder):
    async def scenario():
        async with local(model_folder, {"queue": 2}) as client:
            jobs = [asyncio.ensure_future(client.embed(ROWS, pooling="mean", normalize=True)) for _ in range(3)]
            found = await asyncio.gather(*jobs, return_exceptions=True)
            assert [getattr(each, "status", 200) for each in found] == [200, 200, 429]

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    return folder_of(masked_lm(), bert_words(), tmp_path_factory.mktemp("encoder"))


def test_encoder_embeds_and_does_not_generate(encoder_folder):
    rows = [[2, 5, 6, 3], [2, 7, 3], [2, 5, 8, 9, 10, 11, 3]]

    async def scenario():
        async with local(encoder_folder, max_model_len=None) as client:
            facts = client.facts
            assert (facts.generates, facts.embeds, facts.topology, facts.max_num_seqs) == (False, True, "encoder", 0)
            assert (facts.max_model_len, facts.hard_limit, facts.pooling) == (32, True, "mean")
            with pytest.raises(ApiError, match="continues no text") as refused:
                await outputs(ask(client, [2, 5, 3], max_new_tokens=2))
            assert refused.value.status == 400
            return await client.embed(rows, pooling=facts.pooling, normalize=False)

    found = asyncio.run(scenario())
    body = without_head(load(encoder_folder, "cpu", torch.float64).eval())
    for row, vector in zip(rows, found, strict=True):
        ids = torch.tensor([row])
        want = body(ids, token_types=torch.zeros_like(ids)).hidden[0].mean(0)
        torch.testing.assert_close(torch.tensor(vector, dtype=torch.float64), want.detach(), rtol=1e-9, atol=1e-9)


def test_folder_of_sentence_transformers_embeds_by_its_own_modules(encoder_folder, tmp_path):
    import json
    import shutil

    home = tmp_path / "sentence"
    shutil.copytree(encoder_folder, home)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    (home / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]))  # fmt: skip
    (home / "1_Pooling").mkdir()
    (home / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (home / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20, "do_lower_case": True}))
    text = "the big cat sat on the mat"
    ids = tokenizer(home).inner.encode(text).ids

    async def scenario():
        async with local(home, max_model_len=None) as client:
            assert client.facts.pooling == "model"
            assert client.facts.sentence == {"lower": True, "prompt": "", "max_tokens": 20}
            assert client.facts.max_model_len == 20
            return await client.embed([ids, ids[:3]], pooling="model", normalize=False)

    found = asyncio.run(scenario())
    want = af.pipeline("feature-extraction", home, dtype=torch.float64)(text)
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(want), rtol=1e-6, atol=1e-6)


def test_dimensions_of_a_folder_with_a_dense_layer_go_up_to_its_own_width(encoder_folder, tmp_path, serving):
    import json
    import shutil

    from safetensors.torch import save_file

    home = tmp_path / "sentence"
    shutil.copytree(encoder_folder, home)
    width = load(home, "cpu").spec.width
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    (home / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]))  # fmt: skip
    files = {"1_Pooling": {"pooling_mode_cls_token": True}, "2_Dense": {"in_features": width, "out_features": width + 6, "bias": False}}  # fmt: skip
    for name, config in files.items():
        (home / name).mkdir()
        (home / name / "config.json").write_text(json.dumps(config))
    save_file({"linear.weight": torch.eye(width + 6, width)}, home / "2_Dense" / "model.safetensors")
    with serving(model=str(home)) as running:
        assert (running.client.facts.width, running.client.facts.embedding_width) == (width, width + 6)
        for asked, got in ((None, width + 6), (width + 2, width + 2), (width + 6, width + 6)):
            answer = running.post("/v1/embeddings", {"input": "the cat", "dimensions": asked})
            assert len(answer.data["data"][0]["embedding"]) == got
        refused = running.post("/v1/embeddings", {"input": "the cat", "dimensions": width + 7})
        assert (refused.status, refused.error["param"]) == (400, "dimensions")
    with serving(model=str(home), pooling="mean") as running:
        assert running.client.facts.embedding_width == width


def test_encoder_decoder_generates_from_its_source_and_embeds_by_its_encoder(tmp_path):
    words = train_bpe([TEXT], 300)
    spec = SPEC | {"topology": "encoder-decoder", "vocab": words.vocab, "ids": {"bos": 0, "start": 0}}
    af.save(randomise(af.build(af.spec(spec)), 0).eval(), tmp_path)
    words.save(tmp_path)
    params = {"max_new_tokens": 6, "stop": []}

    async def scenario():
        async with local(tmp_path) as client:
            assert (client.facts.topology, client.facts.generates) == ("encoder-decoder", True)
            asked = [ask(client, prompt, **params) for prompt in PROMPTS[:3]]
            found = await asyncio.gather(*map(outputs, asked))
            for prompt, each in zip(PROMPTS, found, strict=False):
                assert_same(gathered(each, 1), expected(tmp_path, prompt, params))
            return await client.embed(ROWS, pooling="mean", normalize=False)

    vectors = asyncio.run(scenario())
    model = load(tmp_path, "cpu", torch.float64).eval()
    for row, vector in zip(ROWS, vectors, strict=True):
        want = (
            model(torch.tensor([row]), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long)).encoder_states[0].mean(0)
        )
        torch.testing.assert_close(torch.tensor(vector, dtype=torch.float64), want.detach(), rtol=1e-9, atol=1e-9)


def test_look_equals_the_trace_of_the_same_prompt_beside_generation(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            ids = tokenizer(model_folder).encode("the cat sat on the mat")
            looks = [asyncio.ensure_future(client.look(ids)) for _ in range(4)]
            await assert_serves_all(client, model_folder)
            found = await asyncio.gather(*looks)
            assert all(each == found[0] for each in found)
            return ids, found[0]

    ids, found = asyncio.run(scenario())
    model, words = load(model_folder, "cpu", torch.float64).eval(), tokenizer(model_folder)
    assert found == trace_ids(model, words, ids, name="tiny").data()
    # What explain makes of the text has the token before it with which texts begin.
    assert (
        trace_prompt(model, words, "the cat sat on the mat", name="tiny").data()
        == trace_ids(model, words, [0, *ids], name="tiny").data()
    )


def test_looks_beyond_the_queue_are_refused_and_cancelled_ones_make_room(model_folder, monkeypatch):
    go_on = threading.Event()
    from anyformer.serve.engine.worker import EngineWorker

    trace = EngineWorker._trace
    monkeypatch.setattr(EngineWorker, "_trace", lambda self, message: (go_on.wait(), trace(self, message))[1])

    async def scenario():
        async with local(model_folder, {"look_queue": 2, "look_tokens": 8}) as client:
            with pytest.raises(ApiError, match="looks at 8 at most"):
                await client.look([1] * 9)
            looks = [asyncio.ensure_future(client.look([1, 2, 3])) for _ in range(4)]
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as refused:
                await looks[3]
            assert refused.value.status == 429
            looks[1].cancel()
            await asyncio.gather(looks[1], return_exceptions=True)
            last = asyncio.ensure_future(client.look([1, 2, 3]))
            await assert_serves_all(client, model_folder, rounds=1)
            go_on.set()
            found = await asyncio.gather(looks[0], looks[2], last)
            assert all(each == found[0] for each in found)
            with pytest.raises(ApiError, match="holds token 99999"):
                await client.look([99999])

    try:
        asyncio.run(scenario())
    finally:
        go_on.set()


def test_requests_after_many_jobs_still_get_the_same(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            await asyncio.gather(*(client.embed([row], pooling="last", normalize=True) for row in ROWS))
            found = gathered(await outputs(ask(client, PROMPTS[1], **MENU[1])), 1)
            assert_same(found, expected(model_folder, PROMPTS[1], MENU[1]))

    asyncio.run(scenario())
