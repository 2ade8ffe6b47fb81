"""GGUF files in llama.cpp's layout, written here without our writer, against transformers' own reader of them."""

import contextlib
import functools
import json
import math
import struct
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers

import anyformer as af
from anyformer.cli.main import main
from anyformer.errors import AnyformerError, CapabilityError, CheckpointError, InputError, SpecError
from anyformer.families.gguf import header as gguf_header
from anyformer.families.gguf.architectures import llama3_factors
from anyformer.families.gguf.header import read_header
from anyformer.families.io import load, stored_dtype
from tests.tolerances import assert_close

STORIES = Path(__file__).parents[2].parent / "shared" / "data" / "stories260K"
TYPES = gguf.GGMLQuantizationType
VOCAB = 64

ROPE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up", "model.layers.": "blk.",
}  # fmt: skip
EXPERTS = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.gate.": "ffn_gate_inp.",
    "mlp.experts.gate_up_proj": "ffn_{}_exps.weight", "mlp.experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip
GEMMA = ROPE | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
GPT2 = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "transformer.h.": "blk.", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_1": "attn_norm", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "lm_head": "output",
}  # fmt: skip
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
SIZES = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}  # fmt: skip
THETA = {"rope.freq_base": 500.0}
# Where a file leaves a size out, the reader of transformers has the class's default.
CASES = {
    "llama": ("LlamaForCausalLM", SMALL | {"rope_theta": 500.0}, THETA | {"rope.dimension_count": 16}),
    "llama-tied": ("LlamaForCausalLM", SMALL | {"rope_theta": 500.0, "tie_word_embeddings": True}, THETA | {"rope.dimension_count": 16}),
    "qwen2": ("Qwen2ForCausalLM", SMALL | {"rope_theta": 500.0}, THETA),
    "qwen3": ("Qwen3ForCausalLM", SMALL | {"rope_theta": 500.0, "head_dim": 128},
              THETA | {"attention.key_length": 128, "attention.value_length": 128}),
    "gemma2": ("Gemma2ForCausalLM", SMALL | {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 6, "tie_word_embeddings": True},
               {"attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 6,
                "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("Gemma3ForCausalLM", SMALL | {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 6, "num_hidden_layers": 7, "tie_word_embeddings": True},
               {"attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 6, "rope.freq_base": 1e6}),
    "phi3": ("Phi3ForCausalLM", SMALL | {"rope_theta": 500.0}, THETA | {"rope.dimension_count": 16}),
    "qwen2moe": ("Qwen2MoeForCausalLM", SMALL | {"rope_theta": 500.0, "num_experts": 3, "num_experts_per_tok": 2,
                                                 "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
                 THETA | {"expert_count": 3, "expert_used_count": 2, "expert_feed_forward_length": 1408,
                          "expert_shared_feed_forward_length": 5632}),
    "qwen3moe": ("Qwen3MoeForCausalLM", SMALL | {"rope_theta": 500.0, "head_dim": 24, "num_experts": 3, "num_experts_per_tok": 2,
                                                 "moe_intermediate_size": 768, "norm_topk_prob": True},
                 THETA | {"attention.key_length": 24, "attention.value_length": 24, "expert_count": 3, "expert_used_count": 2,
                          "expert_feed_forward_length": 768}),
    "llama-experts": ("MixtralForCausalLM", SMALL | {"rope_theta": 500.0, "num_local_experts": 3, "num_experts_per_tok": 2},
                      THETA | {"rope.dimension_count": 16, "expert_count": 3, "expert_used_count": 2}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024, "tie_word_embeddings": True}, {}),
}  # fmt: skip


@functools.cache
def public_model(name, seed=0):
    """The public class with random weights."""
    cls, config, _ = CASES[name]
    made = getattr(transformers, cls)
    eager = {"attn_implementation": "eager"} if "gemma" in name else {}
    eager |= {"experts_implementation": "eager"} if "xperts" in name or "moe" in name else {}
    model = made(made.config_class(**config, **eager)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.3 if parameter.dim() == 1 else 0.1
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model


def renamed(name, table):
    for theirs, own in table.items():
        name = name.replace(theirs, own)
    return name


def stored(name, model, tensor_type="F32"):
    """Tensors in llama.cpp's names and layout, as its converter makes them."""
    arch = name.split("-")[0]
    table = GPT2 if arch == "gpt2" else GEMMA if "gemma" in arch else EXPERTS | ROPE
    found = {}
    for theirs, tensor in model.state_dict().items():
        own, array = renamed(theirs, table), tensor.detach().numpy()
        if own == "output.weight" and model.config.tie_word_embeddings:
            continue
        if arch == "llama" and ("attn_q." in own or "attn_k." in own):
            heads = 4 if "attn_q." in own else 2
            array = array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if "ffn_{}_exps" in own:
            halves = np.split(array, 2, 1)
            found |= {own.format(part): (np.ascontiguousarray(half), TYPES[tensor_type])
                      for part, half in zip(("gate", "up"), halves, strict=True)}  # fmt: skip
            continue
        if own.endswith("_shexp.weight") and "inp" in own:
            array = array[0]
        if "gemma" in arch and own.endswith("norm.weight"):
            array = array + 1
        if arch == "gpt2" and own.endswith(
            ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
        ):
            array = array.T
        found[own] = np.ascontiguousarray(array), TYPES.F32 if array.ndim == 1 else TYPES[tensor_type]
    return found


def write(file, arch, keys, tensors, tokens=True):
    """A GGUF file."""
    writer = gguf.GGUFWriter(file, arch)
    for key, value in keys.items():
        own = key if key.startswith(("tokenizer.", "general.")) else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(own, value)
        elif isinstance(value, int):
            writer.add_uint32(own, value)
        elif isinstance(value, float):
            writer.add_float32(own, value)
        elif isinstance(value, str):
            writer.add_string(own, value)
        else:
            writer.add_array(own, value)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    for name, (array, kind) in tensors.items():
        if array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=kind)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def keys_of(name):
    _, config, more = CASES[name]
    if name == "gpt2":
        found = {"context_length": 1024, "embedding_length": 64, "feed_forward_length": 256, "block_count": 2}
        return found | {"attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "padding_token_id": 0}
    sizes = {key: config[own] for key, own in SIZES.items()}
    return sizes | more | {f"tokenizer.ggml.{key}": value for key, value in ids.items()}


def written(folder, name, tensor_type="F32", **changes):
    """A file of one of the cases, and the public model that it was made of."""
    model = public_model(name)
    keys = keys_of(name) | changes
    return write(folder / f"{name}.gguf", name.split("-")[0], keys, stored(name, model, tensor_type)), model


IDS = torch.randint(3, VOCAB, (2, 11), generator=torch.Generator().manual_seed(4))


def theirs(file):
    """Logits of transformers' reader, in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = {"attn_implementation": "eager"} if "gemma" in file.name else {}
        with pytest.MonkeyPatch.context() as patch:
            # It asks for accelerate, of which it uses nothing here.
            patch.setattr("transformers.modeling_utils.is_accelerate_available", lambda: True)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, **eager
            )
    with torch.no_grad():
        return model.eval()(IDS).logits


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_model_of_a_gguf_file_equals_that_of_the_public_reader(name, tmp_path):
    file, model = written(tmp_path, name)
    ours = load(file)
    if name != "llama-experts":
        # Its reader knows no experts of this architecture.
        assert_close("fp32-oracle", ours(IDS).logits, theirs(file))
    assert_close("fp32-oracle", ours(IDS).logits, model(IDS).logits)
    assert ours.spec == af.spec(file)
    if name != "gpt2":
        assert (ours.spec.ids.bos, ours.spec.ids.eos, ours.spec.ids.pad) == (1, (2,), 0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, kind) for name in CASES for kind in ("f32", "q8_0")), ("llama", "f16"), ("gpt2", "bf16")],
)
def test_gguf_file_that_we_wrote_is_read_alike_by_the_public_reader(name, kind, tmp_path):
    file, _ = written(tmp_path, name)
    (tmp_path / "ours").mkdir()
    again = tmp_path / "ours" / file.name
    af.save(load(file), again, format="gguf", gguf_type=kind)
    found = load(again)
    if name != "llama-experts":
        assert_close("fp32-oracle", found(IDS).logits, with_tokens(again))
    if kind == "f32":
        assert found.spec == load(file).spec
        worst = 1e-6 if "gemma" in name else 0.0
        for mine, first in zip(found.parameters(), load(file).parameters(), strict=True):
            assert (mine - first).abs().max() <= worst


def with_tokens(file):
    """The logits of a file without a vocabulary, which the public reader counts."""
    header = read_header(file)
    arch = header.metadata["general.architecture"]
    keys = {key.removeprefix(f"{arch}."): value for key, value in header.metadata.items() if key.startswith(arch)}
    keys |= {
        key: value for key, value in header.metadata.items() if key.startswith("tokenizer.ggml") and type(value) is int
    }
    raw = np.fromfile(file, np.uint8)
    tensors = {
        name: (raw[block.begin : block.end].reshape(*block.shape[:-1], -1), block.type)
        for name, block in header.tensors.items()
    }
    return theirs(write(file.with_name(f"tokens-{file.name}"), arch, keys, tensors))


QUANTISED = [kind for kind in TYPES if kind in gguf.quants._type_traits or kind.name in ("F32", "F16")]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_blocks_of_every_type_are_what_the_package_says(kind, tmp_path):
    file, model = written(tmp_path, "llama")
    rng = np.random.default_rng(int(kind))
    block, size = gguf.GGML_QUANT_SIZES[kind]
    keys = keys_of("llama") | {"embedding_length": 256, "rope.dimension_count": 64, "feed_forward_length": 256}
    shapes = {own: array.shape for own, (array, _) in stored("llama", model).items()}
    tensors, blocks = {}, {}
    for own, shape in shapes.items():
        shape = tuple(256 if n in (64, 96) and i + len(own) else 128 if n == 32 else n for i, n in enumerate(shape))
        shape = (VOCAB, 256) if own in ("token_embd.weight", "output.weight") else shape
        if own == "blk.0.ffn_down.weight":
            data = rng.integers(0, 256, (shape[0], shape[1] // block * size), dtype=np.uint8)
            if kind.name in ("F32", "F16", "BF16"):
                plain = rng.standard_normal(shape).astype(np.float32)
                data = np.ascontiguousarray(gguf.quants.quantize(plain, kind)).view(np.uint8).reshape(shape[0], -1)
            tensors[own], blocks = (data, kind), data
        else:
            tensors[own] = rng.standard_normal(shape).astype(np.float32), TYPES.F32
    write(file, "llama", keys, tensors)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(blocks, kind)
    found = load(file).get_parameter("decoder.blocks.0.ffn.body.down.weight")
    assert np.array_equal(found.detach().numpy(), wanted.reshape(256, 256), equal_nan=True)


@torch.no_grad()
def test_frequencies_that_are_stored_as_factors_are_llama_3s(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    config = CASES["llama"][1] | {"rope_theta": 5e5, "rope_scaling": scaling}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    plain = 1 / 5e5 ** (torch.arange(0, 16, 2) / 16)
    factors = (plain / made.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    tensors = stored("llama", made) | {"rope_freqs.weight": (factors, TYPES.F32)}
    file = write(tmp_path / "x.gguf", "llama", keys_of("llama") | {"rope.freq_base": 5e5}, tensors)
    model = load(file)
    assert model.spec.position.scaling.kind == "llama3"
    assert model.spec.position.scaling.factor == 8.0
    assert_close("fp32-oracle", model(IDS).logits, made(IDS).logits)
    af.save(model, tmp_path / "again.gguf", format="gguf", gguf_type="f32")
    assert load(tmp_path / "again.gguf").spec == model.spec
    assert np.allclose(llama3_factors(scaling, 5e5, 16), factors, rtol=1e-6)
    # Other factors have no name, and count as they are.
    odd = {"rope_freqs.weight": (factors * np.linspace(1, 2, 8, dtype=np.float32), TYPES.F32)}
    other = load(write(tmp_path / "odd.gguf", "llama", keys_of("llama") | {"rope.freq_base": 5e5}, tensors | odd))
    assert other.spec.position.scaling.long == pytest.approx(odd["rope_freqs.weight"][0])
    longest = {
        "rope_type": "longrope",
        "factor": 1.0,
        "attention_factor": 1.0,
        "original_max_position_embeddings": 4096,
    }
    lists = dict.fromkeys(("short_factor", "long_factor"), odd["rope_freqs.weight"][0].tolist())
    same = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config | {"rope_scaling": longest | lists})).eval()
    same.load_state_dict(made.state_dict())
    assert_close("fp32-oracle", other(IDS).logits, same(IDS).logits)


@pytest.mark.parametrize("original", [256, 2048])
def test_llama_3_of_another_trained_length_goes_there_and_back(original, tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": original}  # fmt: skip
    config = CASES["llama"][1] | {"rope_theta": 5e5, "rope_scaling": scaling}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).save_pretrained(tmp_path / "hf")
    model = load(tmp_path / "hf")
    af.save(model, tmp_path / "x.gguf", format="gguf", gguf_type="f32")
    again = load(tmp_path / "x.gguf")
    assert again.spec.position == model.spec.position
    assert again.spec.position.scaling.original == original


@torch.no_grad()
def test_long_and_short_factors_of_phi_3_go_there_and_back(tmp_path):
    lists = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.3 * i for i in range(8)]}
    scaling = {"rope_type": "longrope", "type": "longrope"} | lists
    config = SMALL | {"rope_theta": 500.0, "original_max_position_embeddings": 8, "max_position_embeddings": 32,
                      "sliding_window": 5}  # fmt: skip
    made = transformers.Phi3ForCausalLM(transformers.Phi3Config(**config, rope_scaling=scaling)).eval()
    keys = keys_of("phi3") | {
        "rope.scaling.original_context_length": 8,
        "context_length": 32,
        "attention.sliding_window": 5,
    }
    keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(4) / math.log(8))
    more = {
        f"rope_factors_{kind}.weight": (np.array(lists[f"{kind}_factor"], np.float32), TYPES.F32)
        for kind in ("long", "short")
    }
    model = load(write(tmp_path / "x.gguf", "phi3", keys, stored("phi3", made) | more))
    for ids in (IDS, IDS[:, :6]):
        assert_close("fp32-oracle", model(ids).logits, made(ids).logits)
    af.save(model, tmp_path / "again.gguf", format="gguf", gguf_type="f32")
    assert load(tmp_path / "again.gguf").spec == model.spec


@torch.no_grad()
def test_linear_scaling_and_windows_of_gemma_3_are_read(tmp_path):
    config = CASES["gemma3"][1]
    changed = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_local_base_freq": 700.0}
    made = transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**config | changed, attn_implementation="eager")
    ).eval()
    keys = keys_of("gemma3") | {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 700.0}
    model = load(write(tmp_path / "gemma.gguf", "gemma3", keys, stored("gemma3", made)))
    assert_close("fp32-oracle", model(IDS).logits, made(IDS).logits)
    af.save(model, tmp_path / "again.gguf", format="gguf", gguf_type="f32")
    assert load(tmp_path / "again.gguf").spec == model.spec


def test_q4_0_is_taken_as_it_is_stored_where_int4_is_asked_for(tmp_path):
    file, _ = written(tmp_path, "llama", "Q4_0")
    plain = load(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = load(file, quantize="int4")
    for part in ("ffn.body.down", "attention.body.o"):
        wanted = plain.get_parameter(f"decoder.blocks.1.{part}.weight")
        found = model.get_submodule(f"decoder.blocks.1.{part}").numbers
        assert found.group == 32
        assert torch.equal(found.floats(torch.float32), wanted)
    merged = model.get_submodule("decoder.blocks.1.attention.body.q").whole.numbers
    parts = [plain.get_parameter(f"decoder.blocks.1.attention.body.{p}.weight") for p in "qkv"]
    assert torch.equal(merged.floats(torch.float32), torch.cat(parts))


def test_dtype_of_a_gguf_file_is_that_of_its_matrices(tmp_path):
    for kind, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16), ("Q8_0", torch.float16)):
        assert stored_dtype(written(tmp_path, "llama", kind)[0]) == dtype


# What can't be read.


def changed_bytes(change):
    def make(file):
        data = bytearray(file.read_bytes())
        file.write_bytes(bytes(change(data) or data))

    return make


def with_magic(data):
    data[:4] = b"GGML"


def of_version(data):
    data[4:8] = struct.pack("<I", 9)


def many_tensors(data):
    data[8:16] = struct.pack("<Q", 2**60)


def many_keys(data):
    data[16:24] = struct.pack("<Q", 2**19)


def endless_list(data):
    at = data.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    data[at : at + 8] = struct.pack("<Q", 2**60)


def endless_text(data):
    at = data.index(b"general.architecture") + len("general.architecture") + 4
    data[at : at + 8] = struct.pack("<Q", 2**63)


def info_of(data, name=b"output_norm.weight"):
    """Where the type and the offset of a tensor stand."""
    return data.index(name) + len(name) + 4 + 8


def of_type(data):
    at = info_of(data)
    data[at : at + 4] = struct.pack("<I", 77)


def of_whole_numbers(data):
    at = info_of(data)
    data[at : at + 4] = struct.pack("<I", int(TYPES.I32))


def beyond_the_end(data):
    at = info_of(data) + 4
    data[at : at + 8] = struct.pack("<Q", 2**40)


def wide(data):
    at = info_of(data) - 8
    data[at : at + 8] = struct.pack("<Q", 2**62)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[: len(data) // 2], "is the file cut off?"),
        (lambda data: data[:100], "is it cut off?"),
        (lambda data: data[:5], "is it cut off?"),
        (lambda data: data[:0] or b"", "does not begin with GGUF"),
        (with_magic, "does not begin with GGUF"),
        (of_version, "it is of version 9; 2 and 3 are read"),
        (many_tensors, "at most 1048576 are read"),
        (many_keys, "GGUF"),
        (endless_list, "tokenizer.ggml.tokens"),
        (endless_text, "before a text of"),
        (of_type, "output_norm.weight: is of type 77"),
        (of_whole_numbers, "output_norm.weight: is of type I32, which can't be dequantised"),
        (beyond_the_end, "output_norm.weight: claims bytes"),
        (wide, "output_norm.weight: claims bytes"),
    ],
)
def test_damaged_gguf_file_is_refused_by_name(damage, words, tmp_path):
    file, _ = written(tmp_path, "llama")
    data = bytearray(file.read_bytes())
    file.write_bytes(bytes(damage(data) or data) if len(data) else b"")
    if words == "does not begin with GGUF" and damage is not with_magic:
        file.write_bytes(b"")
    with pytest.raises(CheckpointError) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


class NamesFile(Exception):
    pass


def naming(read, file):
    try:
        read(file)
    except AnyformerError as error:
        raise (NamesFile if file.name in str(error) else error) from error


def test_gguf_file_cut_off_or_changed_anywhere_is_refused_or_read(tmp_path):
    file, _ = written(tmp_path, "llama-tied")
    whole = file.read_bytes()
    cut = [whole[:at] for at in range(8, 1400, 37)]
    for data in cut + [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in range(9, 1400, 37)]:
        file.write_bytes(data)
        # Nothing but our own errors, each with the file's name.
        with warnings.catch_warnings(), contextlib.suppress(NamesFile):
            warnings.simplefilter("ignore")
            naming(load, file)
            naming(af.tokenizer, file)


@pytest.mark.parametrize(
    ("arch", "changes", "words"),
    [
        ("mamba", {}, "general.architecture: 'mamba' can't be read (known: llama, qwen2"),
        ("llama", {"attention.clamp_kqv": 3.0}, "llama.attention.clamp_kqv: is not a key that we know here"),
        ("llama", {"expert_count": 8}, "block_sparse_moe.experts.7.w3.weight: is missing"),
        ("qwen2", {"expert_count": 8}, "qwen2.expert_count: is not 0, and we know no such model with experts"),
        ("qwen3moe", {}, "qwen3moe.expert_count: is missing"),
        ("llama", {"rope.dimension_count": 8}, "llama.rope.dimension_count: is 8, but heads of 16"),
        ("llama", {"attention.value_length": 8}, "llama.attention.value_length: is 8"),
        ("llama", {"attention.head_count_kv": [2, 1]}, "llama.attention.head_count_kv: [2, 1] is not one number"),
        ("llama", {"rope.scaling.type": "su", "rope.scaling.factor": 2.0}, "rope.scaling.type: 'su' can't be read"),
        ("llama", {"general.alignment": 3}, "general.alignment: 3 is no power of two"),
        ("llama", {"general.split": 3}, ""),
    ],
)
def test_gguf_file_of_another_kind_of_model_is_refused_by_key(arch, changes, words, tmp_path):
    model = public_model("llama")
    file = write(tmp_path / "x.gguf", arch, keys_of("llama") | changes, stored("llama", model))
    if not words:
        load(file)
        return
    with pytest.raises(AnyformerError) as caught:
        load(file)
    assert str(file) in str(caught.value)
    assert words in str(caught.value)


def test_key_that_is_to_be_ignored_is_passed_over(tmp_path):
    file, _ = written(tmp_path, "llama", **{"attention.clamp_kqv": 3.0})
    assert load(file, ignore_keys=("llama.attention.clamp_kqv",)).spec.attention.clip_qkv is None


def test_gguf_file_without_a_tensor_or_with_another_is_refused(tmp_path):
    tensors = stored("llama", public_model("llama"))
    del tensors["blk.1.ffn_up.weight"]
    tensors["blk.1.strange.weight"] = np.zeros(3, np.float32), TYPES.F32
    file = write(tmp_path / "x.gguf", "llama", keys_of("llama"), tensors)
    with pytest.raises(CheckpointError) as caught:
        load(file)
    assert "model.layers.1.mlp.up_proj.weight: is missing" in str(caught.value)
    assert "blk.1.strange.weight: is no parameter" in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position.kind": "alibi"}, "position.kind"),
        ({"position.scaling": {"kind": "dynamic", "factor": 2.0, "original": 64}}, "position.scaling"),
        ({"attention.pattern": "window(5)", "attention.bias": "qkv"}, "attention.pattern"),
        ({"ffn.kind": "reglu"}, "ffn.kind"),
        ({"topology": "encoder", "attention.pattern": None}, "as a GGUF file; the nearest"),
    ],
)
def test_spec_that_llama_cpp_cannot_hold_is_refused_by_field(changes, words, tmp_path):
    spec = load(written(tmp_path, "llama")[0]).spec
    model = af.build(spec.vary(changes))
    with pytest.raises(SpecError) as caught:
        af.save(model, tmp_path / "new.gguf", format="gguf")
    assert words in str(caught.value)
    assert not (tmp_path / "new.gguf").exists()


def test_model_that_is_written_as_another_architecture_is_warned_about(tmp_path):
    # Phi-3 has windows, and else what Llama has.
    model = load(written(tmp_path, "llama")[0])
    windowed = af.build(model.spec.vary({"attention.pattern": "window(5)"}))
    windowed.family = "llama"
    with pytest.warns(UserWarning, match="was read from llama, .* it is written as phi3"):
        af.save(windowed, tmp_path / "new.gguf", format="gguf")
    assert load(tmp_path / "new.gguf").spec == windowed.spec.vary({})


def test_gguf_needs_its_package_and_says_so(tmp_path, monkeypatch):
    file, _ = written(tmp_path, "llama")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(CapabilityError, match=r"pip install 'anyformer\[gguf\]'"):
        load(file)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("x.bin", "f16", "ends in .gguf"),
        ("x.gguf", "q4_k", "type: 'q4_k' is unknown"),
        ("folder.gguf", "f16", "directory"),
    ],
)
def test_gguf_file_that_cannot_be_written_is_refused(name, kind, words, tmp_path):
    model = load(written(tmp_path, "llama")[0])
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(InputError, match=words):
        af.save(model, tmp_path / name, format="gguf", gguf_type=kind)


def test_failed_write_leaves_the_old_gguf_file(tmp_path, monkeypatch):
    model = load(written(tmp_path, "llama")[0])
    place = tmp_path / "again.gguf"
    af.save(model, place, format="gguf")
    before = place.read_bytes()
    monkeypatch.setattr(
        gguf.GGUFWriter, "write_ti_data_to_file", lambda self: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises((AnyformerError, OSError)):
        af.save(model, place, format="gguf")
    assert place.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_header_is_read_once_for_what_it_says(tmp_path):
    file, _ = written(tmp_path, "llama")
    found = read_header(file)
    reader = gguf.GGUFReader(file)
    assert found.tensors.keys() == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        block = found.tensors[tensor.name]
        assert (block.begin, block.end) == (tensor.data_offset, tensor.data_offset + tensor.n_bytes)
        assert block.shape == tuple(reversed(tensor.shape.tolist()))
    assert found.metadata["llama.block_count"] == 2
    assert gguf_header.is_gguf("a/b.GGUF")


@pytest.mark.skipif(not STORIES.is_dir(), reason="the checkpoint stories260K is not beside this repository")
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_real_checkpoint_speaks_the_same_from_a_gguf_file(kind, tmp_path, capsys):
    file = tmp_path / "stories.gguf"
    assert main(["convert", str(STORIES), str(file), "--format", "gguf", "--type", kind]) == 0
    recorded = json.loads((STORIES / "greedy.json").read_text())
    ids = af.generate(load(file), torch.tensor([recorded["prompt_ids"]]), max_new_tokens=200, stop=())[0].tolist()
    words = af.tokenizer(file)
    assert words.decode(ids).strip() == recorded["text"].strip()
    mine = af.tokenizer(STORIES)
    for text in ("Once upon a time, there was a little girl.", " two  spaces\nand é 字", ""):
        assert words.text_ids(text) == mine.text_ids(text)
    capsys.readouterr()
    assert main(["generate", str(file), "Once upon a time", "--greedy", "--max-new-tokens", "20"]) == 0
    said = capsys.readouterr().out
    assert main(["generate", str(STORIES), "Once upon a time", "--greedy", "--max-new-tokens", "20"]) == 0
    assert said == capsys.readouterr().out
    assert main(["convert", str(file), str(tmp_path / "back"), "--format", "hf", "--dtype", "float32"]) == 0
    back = load(tmp_path / "back")
    first = load(STORIES)
    if kind == "f32":
        for mine, other in zip(back.parameters(), first.parameters(), strict=True):
            assert torch.equal(mine, other)
    assert main(["explain", str(file)]) == 0
