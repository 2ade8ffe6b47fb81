"""What an engine is made of: as large as was asked for, or as memory allows, or an error that says what to do."""

import asyncio

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import InputError
from anyformer.families.io import load
from anyformer.generation.engine import Engine
from anyformer.parts.quantized import is_quantized
from anyformer.serve.engine.load import load_engine, plan_pool
from anyformer.serve.engine.messages import pack_config, unpack_config
from tests.contract.contracts import randomise
from tests.serve.conftest import SPEC, TEXT
from tests.serve.engines import MENU, PROMPTS, ask, assert_same, config_of, expected, gathered, local, outputs


def test_facts_say_what_was_loaded(model_folder):
    loaded = load_engine(
        config_of(model_folder, served_model_name=("mine", "other"), max_model_len=None, max_num_seqs=None)
    )
    facts, spec = loaded.facts, loaded.source.model.spec
    assert (facts.name, facts.folder, facts.topology) == ("mine", str(model_folder), "decoder")
    assert (facts.vocab, facts.context, facts.max_model_len, facts.max_num_seqs) == (spec.vocab, 256, 256, 32)
    assert (facts.num_blocks, facts.block_size, facts.dtype, facts.device) == (32 * 16, 16, "float64", "cpu")
    assert (facts.generates, facts.embeds, facts.hard_limit, facts.pooling) == (True, True, False, "last")
    assert facts.params == spec.count().params
    model = loaded.source.model
    assert facts.size == sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    # Keys and values of 2 layers with 2 heads of 8 in fp64.
    assert facts.kv_bytes_per_token == 2 * 2 * 2 * 8 * 8 == spec.count().kv_bytes(1, "float64")
    assert af.spec(facts.spec) == spec


def test_config_survives_json_without_its_keys(model_folder):
    config = config_of(
        model_folder, {"queue": 7}, keys=("secret",), defaults=(("temperature", 0.5),), cors_origins=("a",)
    )
    import dataclasses
    import json

    text = json.dumps(pack_config(config))
    assert "secret" not in text
    assert unpack_config(json.loads(text)) == dataclasses.replace(config, keys=())


@pytest.mark.parametrize("kv_cache_dtype", ["model", "int8"])
def test_plan_is_what_the_pool_takes(model_folder, kv_cache_dtype):
    model = load(model_folder, "cpu", torch.float32).eval()
    for room in (2**20, 3 * 2**20, 2**24):
        config = config_of(model_folder, max_num_seqs=None, kv_cache_dtype=kv_cache_dtype)
        plan = plan_pool(model, config, 256, room=room)
        engine = Engine(
            model, max_num_seqs=plan.max_num_seqs, max_model_len=256, num_blocks=plan.num_blocks, kv_cache_dtype=kv_cache_dtype
        )  # fmt: skip
        assert engine.scheduler.blocks.nbytes <= room
        assert plan.max_num_seqs == 32
        # One block more would not fit, unless all sequences have room for all of their tokens.
        assert plan.num_blocks is None or engine.scheduler.blocks.nbytes + plan.bytes_per_token * 16 > room


def test_plan_with_too_little_memory_for_one_sequence_says_what_fits(model_folder):
    model = load(model_folder, "cpu", torch.float32).eval()
    with pytest.raises(
        InputError, match=r"one sequence of 256 tokens takes 65\.5 kB .* 30\.0 kB .* --max-model-len 112 or less"
    ):
        plan_pool(model, config_of(model_folder), 256, room=30_000)
    assert plan_pool(model, config_of(model_folder), 112, room=30_000).num_blocks == 7


def test_plan_of_a_model_with_states_takes_fewer_sequences_where_memory_is_short():
    spec = af.spec(
        SPEC | {"vocab": 50, "attention": {"heads": 4, "mixer": {"kind": "linear"}}, "position": {"kind": "none"}}
    )
    model = af.build(spec)
    config = config_of("none", max_num_seqs=None)
    one = plan_pool(model, config, 64, room=2**30)
    assert (one.max_num_seqs, one.num_blocks, one.bytes_per_token) == (32, None, 0)
    pool = model.new_pool(4, 64)
    few = plan_pool(model, config, 64, room=pool.nbytes)
    assert few.max_num_seqs == 4
    with pytest.raises(InputError, match=r"--max-num-seqs: 9 sequences .* give at most 4"):
        plan_pool(model, config_of("none", max_num_seqs=9), 64, room=pool.nbytes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs: at least 1, got 0"),
        ({"max_model_len": -3}, "--max-model-len: at least 1"),
        ({"threads": 0}, "--threads: at least 1"),
        ({"dtype": "float7"}, "--dtype: 'float7' is unknown"),
        ({"pooling": "sum"}, "--pooling: 'sum' is unknown"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype"),
        (
            {"num_blocks": 5},
            "--num-blocks: 5 of 16 tokens each hold 80, and one sequence may have 96; give at least 6, or --max-model-len 80",
        ),
        ({"batch_invariant": True, "draft": "other"}, "--batch-invariant, --draft: .* leave one of them out"),
        ({"device": "toaster"}, "--device: 'toaster' is none"),
        ({"device": "meta"}, "--device: 'meta' is neither"),
        ({"device": "cuda:99"}, "--device: 'cuda:99' is not there"),
    ],
)
def test_settings_that_can_not_be_are_refused_by_name(model_folder, given, words):
    with pytest.raises(InputError, match=words):
        load_engine(config_of(model_folder, **given))


def test_blocks_of_exactly_one_sequence_serve_it_to_its_last_token(model_folder):
    async def scenario():
        async with local(model_folder, num_blocks=6, max_num_seqs=2) as client:
            asked = [ask(client, [1] * 16, max_new_tokens=80, stop=[]) for _ in range(2)]
            found = [gathered(each, 1) for each in await asyncio.gather(*map(outputs, asked))]
            assert [len(each.ids[0]) for each in found] == [80, 80]

    asyncio.run(scenario())


def test_draft_of_another_vocabulary_is_refused_by_the_name_of_its_option(model_folder, tmp_path):
    af.save(randomise(af.build(af.spec(SPEC | {"vocab": 278})), 0).eval(), tmp_path)
    with pytest.raises(InputError, match=r"^--draft: has 278 tokens and the model .* the same vocabulary"):
        load_engine(config_of(model_folder, draft=str(tmp_path)))


def test_length_beyond_the_positions_of_a_model_is_refused(tmp_path):
    words = train_bpe([TEXT], 300)
    spec = SPEC | {"vocab": words.vocab, "position": {"kind": "learned"}}
    af.save(randomise(af.build(af.spec(spec)), 0).eval(), tmp_path)
    words.save(tmp_path)
    with pytest.raises(InputError, match="--max-model-len: 300 tokens, and this model has 256 positions"):
        load_engine(config_of(tmp_path, max_model_len=300))
    loaded = load_engine(config_of(tmp_path, max_model_len=None))
    assert (loaded.facts.max_model_len, loaded.facts.hard_limit) == (256, True)


def test_length_beyond_what_a_model_was_made_for_is_served_where_it_can(model_folder):
    async def scenario():
        async with local(model_folder, max_model_len=400) as client:
            found = gathered(await outputs(ask(client, [1] * 200, max_new_tokens=150, stop=[])), 1)
            assert len(found.ids[0]) == 150

    asyncio.run(scenario())


def test_quantised_engine_says_what_such_a_model_says(model_folder):
    async def scenario():
        async with local(model_folder, quantize="int8", dtype="float32") as client:
            engine = client.worker.engine
            assert is_quantized(engine.model)
            found = gathered(await outputs(ask(client, PROMPTS[1], max_new_tokens=4, stop=[])), 1)
            return found.ids

    model = load(model_folder, "cpu", torch.float32, "int8")
    want = af.generate(model, torch.tensor([PROMPTS[1]]), max_new_tokens=4, stop=())[:, len(PROMPTS[1]) :].tolist()
    assert asyncio.run(scenario()) == want


def test_engine_with_a_draft_says_the_same(model_folder):
    async def scenario():
        async with local(model_folder, draft=str(model_folder)) as client:
            for prompt, params in zip(PROMPTS[:4], MENU[:4], strict=True):
                found = gathered(await outputs(ask(client, prompt, **params)), params.get("n", 1))
                assert_same(found, expected(model_folder, prompt, params))
            assert client.worker.engine.stats.accepted_tokens > 0

    asyncio.run(scenario())
