"""Released weights of few bits, against the published formulas written out number by number."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import AnyformerError, CheckpointError, SpecError
from anyformer.families.family import Family
from anyformer.families.io import load, stored_dtype
from anyformer.families.quantization import Quantization, quantization
from anyformer.families.shards import opened
from anyformer.model.safetensors_header import read_header
from tests.families.oracle import lifted
from tests.tolerances import assert_close

SLOW_HERE = pytest.mark.filterwarnings("ignore:int4 weights on a CPU")


def randint(low, high, *shape, seed):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def scales(*shape, seed, dtype=torch.float16):
    made = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 0.02 + 0.001
    return made.to(dtype)


def words(numbers, bits):
    """Rows of numbers as words of 32 bits, the first in the lowest bits; the last word may be part empty."""
    per = 32 // bits
    made = []
    for row in numbers.tolist():
        made.append([])
        for at in range(0, len(row), per):
            word = sum(n << bits * k for k, n in enumerate(row[at : at + per]))
            made[-1].append(word - (1 << 32) if word >= 1 << 31 else word)
    return torch.tensor(made, dtype=torch.int32)


def each(out, into, formula):
    """A weight from what its formula gives for each place."""
    return torch.tensor([[formula(o, i) for i in range(into)] for o in range(out)], dtype=torch.float32)


def gptq(out, into, seed, *, bits=4, group=8, order="sequential", layout="gptq", zero=None, told=True):
    size = into if group == -1 else group
    groups = math.ceil(into / size)
    number = randint(0, 1 << bits, into, out, seed=seed)
    zeros = randint(1, 1 << bits, groups, out, seed=seed + 1) if zero is None else torch.full((groups, out), zero)
    if zero is None and layout == "gptq_v2":
        zeros[0, 0] = 0
    scale = scales(groups, out, seed=seed + 2)
    place = torch.arange(into) // size
    if order == "activation":
        place = place[torch.randperm(into, generator=torch.Generator().manual_seed(seed + 3))]
    less = 1 if layout == "gptq" else 0
    stored = {
        "qweight": words(number.T, bits).T.contiguous(), "qzeros": words(zeros - less, bits), "scales": scale,
    } | ({"g_idx": place.to(torch.int32)} if told else {})  # fmt: skip

    number, zeros, scale, place = (table.tolist() for table in (number, zeros, scale, place))

    def formula(o, i):
        g = place[i]
        return (number[i][o] - zeros[g][o]) * scale[g][o]

    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": order != "sequential",
        "sym": False,
    }
    return stored, each(out, into, formula), config | ({} if layout == "gptq" else {"checkpoint_format": layout})


def awq(out, into, seed, *, group=8, zero=None):
    groups = into // group
    number = randint(0, 16, into, out, seed=seed)
    zeros = randint(0, 16, groups, out, seed=seed + 1) if zero is None else torch.full((groups, out), zero)
    scale = scales(groups, out, seed=seed + 2)

    def interleaved(numbers):
        order = [8 * (at // 8) + (0, 2, 4, 6, 1, 3, 5, 7)[at % 8] for at in range(out)]
        return words(numbers[:, order], 4)

    stored = {"qweight": interleaved(number), "qzeros": interleaved(zeros), "scales": scale}

    number, zeros, scale = (table.tolist() for table in (number, zeros, scale))

    def formula(o, i):
        return (number[i][o] - zeros[i // group][o]) * scale[i // group][o]

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "GEMM"}
    return stored, each(out, into, formula), config


def fp8(out, into, seed, *, block=(20, 24), dtype=torch.float32):
    weight = torch.randn(out, into, generator=torch.Generator().manual_seed(seed)).to(torch.float8_e4m3fn)
    grid = () if block is None else (math.ceil(out / block[0]), math.ceil(into / block[1]))
    scale = scales(*grid, seed=seed + 1, dtype=dtype)

    numbers, by = weight.float().tolist(), scale.float().tolist()

    def formula(o, i):
        return numbers[o][i] * (by if block is None else by[o // block[0]][i // block[1]])

    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    config["weight_block_size"] = None if block is None else list(block)
    return {"weight": weight, "weight_scale_inv": scale}, each(out, into, formula), config


def fbgemm(out, into, seed):
    weight = torch.randn(out, into, generator=torch.Generator().manual_seed(seed)).to(torch.float8_e4m3fn)
    scale = scales(out, 1, seed=seed + 1, dtype=torch.float32)
    numbers, by = weight.float().tolist(), scale.tolist()
    stored = {"weight": weight, "weight_scale": scale, "input_scale_ub": torch.tensor([1200.0])}
    return stored, each(out, into, lambda o, i: numbers[o][i] * by[o][0]), {"quant_method": "fbgemm_fp8"}


def compressed(
    out, into, seed, *, form="pack-quantized", bits=4, strategy="group", group=8, symmetric=True, order=False,
    dtype=torch.bfloat16, block=(20, 24),
):  # fmt: skip
    floats = form == "float-quantized"
    half = 1 << bits - 1
    grid = {
        "tensor": (1,), "channel": (out, 1), "group": (out, math.ceil(into / group)),
        "block": (math.ceil(out / block[0]), math.ceil(into / block[1])),
    }[strategy]  # fmt: skip
    number = randint(-half, half, out, into, seed=seed)
    if floats:
        number = torch.randn(out, into, generator=torch.Generator().manual_seed(seed)).to(torch.float8_e4m3fn)
    scale = scales(*grid, seed=seed + 1, dtype=dtype)
    zero = torch.zeros(grid, dtype=torch.int64) if symmetric else randint(-half, half, *grid, seed=seed + 2)
    place = torch.arange(into) // group
    if order:
        place = place[torch.randperm(into, generator=torch.Generator().manual_seed(seed + 3))]

    def at(table, o, i):
        match strategy:
            case "tensor":
                return table[0]
            case "channel":
                return table[o][0]
            case "group":
                return table[o][places[i]]
            case _:
                return table[o // block[0]][i // block[1]]

    stored = {"weight_scale": scale}
    if form == "pack-quantized":
        stored |= {"weight_packed": words(number + half, bits), "weight_shape": torch.tensor([out, into])}
        if not symmetric:
            if strategy in ("group", "channel"):
                stored["weight_zero_point"] = words((zero + half).T, bits).T.contiguous()
            else:
                stored["weight_zero_point"] = zero.to(torch.int8)
    else:
        stored["weight"] = number if floats else number.to(torch.int8)
        if not symmetric:
            stored["weight_zero_point"] = zero.to(torch.int8)
    if order:
        stored["weight_g_idx"] = place.to(torch.int32)
    given = {
        "num_bits": bits, "type": "float" if floats else "int", "strategy": strategy, "symmetric": symmetric,
        "group_size": group if strategy == "group" else None,
        "block_structure": list(block) if strategy == "block" else None,
    }  # fmt: skip
    config = {
        "quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": given, "input_activations": None}},
    }  # fmt: skip
    numbers, zeros, by, places = (table.tolist() for table in (number.float(), zero, scale.float(), place))
    return stored, each(out, into, lambda o, i: (numbers[o][i] - at(zeros, o, i)) * at(by, o, i)), config


def case(make, **more):
    return pytest.param(make, more, id="-".join([make.__name__, *(f"{value}" for value in more.values())]))


CASES = [
    case(gptq), case(gptq, order="activation"), case(gptq, layout="gptq_v2"), case(gptq, bits=8), case(gptq, bits=2),
    case(gptq, group=20), case(gptq, told=False), case(gptq, group=20, told=False), case(gptq, group=-1, told=False),
    case(awq), case(awq, group=16),
    case(fp8), case(fp8, block=None), case(fp8, dtype=torch.bfloat16), case(fbgemm),
    case(compressed), case(compressed, symmetric=False), case(compressed, order=True), case(compressed, bits=8),
    case(compressed, strategy="channel"), case(compressed, strategy="channel", symmetric=False),
    case(compressed, strategy="tensor"), case(compressed, strategy="tensor", symmetric=False, bits=8),
    case(compressed, form="int-quantized", bits=8, strategy="channel"),
    case(compressed, form="int-quantized", bits=8, strategy="channel", symmetric=False),
    case(compressed, form="float-quantized", bits=8, strategy="channel"),
    case(compressed, form="float-quantized", bits=8, strategy="tensor", dtype=torch.float32),
    case(compressed, form="float-quantized", bits=8, strategy="block"),
]  # fmt: skip


def plain_folder(place, seed=0, **changes):
    """A small Llama with random weights, and its config."""
    family = Family.named("llama")
    changes = {"num_hidden_layers": 2, "intermediate_size": 48} | changes
    torch.manual_seed(seed)
    af.save(af.build(family.spec_from(family.small | changes)), place, format="hf")
    return place


def is_product(name):
    return name.endswith("_proj.weight")


def stored_folder(place, make, more, **changes):
    """The folder with its products stored by a method; what each of them stands for."""
    plain_folder(place, **changes)
    tensors, wanted, table = load_file(place / "model.safetensors"), {}, {}
    for seed, name in enumerate(sorted(filter(is_product, [*tensors]))):
        stored, wanted[name], table = make(*tensors.pop(name).shape, 10 * seed, **more)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in stored.items()}
    save_file(tensors, place / "model.safetensors", {"format": "pt"})
    configure(place, quantization_config=table)
    return wanted


def configure(place, **changes):
    config = json.loads((place / "config.json").read_text()) | changes
    (place / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("make", "more"), CASES)
def test_quantised_checkpoint_is_read_as_its_formula_says(make, more, tmp_path):
    wanted = stored_folder(tmp_path / "quantised", make, more)
    plain = plain_folder(tmp_path / "plain")
    tensors = load_file(plain / "model.safetensors") | wanted
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    found, expected = load(tmp_path / "quantised"), load(plain)
    for (name, tensor), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(tensor, other), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_quantised_weights_are_rounded_once_to_the_dtype_that_is_asked_for(dtype, tmp_path):
    wanted = stored_folder(tmp_path, gptq, {})
    model = load(tmp_path, dtype=dtype)
    name = "decoder.blocks.0.attention.body.q.weight"
    assert torch.equal(model.get_parameter(name), wanted["model.layers.0.self_attn.q_proj.weight"].to(dtype))


def test_mxfp4_experts_are_read_as_the_format_says(tmp_path):
    experts, out, blocks = 3, 5, 2
    value = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    data, scale = randint(0, 256, experts, out, blocks, 16, seed=0), randint(117, 133, experts, out, blocks, seed=1)
    stored = {"x.gate_up_proj_blocks": data.to(torch.uint8), "x.gate_up_proj_scales": scale.to(torch.uint8)}
    save_file(stored | {"x.bias": torch.zeros(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    wanted = torch.zeros(experts, blocks * 32, out)
    for e in range(experts):
        for o in range(out):
            for i in range(blocks * 32):
                byte = int(data[e, o, i // 32, i % 32 // 2])
                half = byte >> 4 if i % 2 else byte & 15
                number = -value[half - 8] if half > 7 else value[half]
                wanted[e, i, o] = number * 2.0 ** (int(scale[e, o, i // 32]) - 127)
    with opened(tmp_path) as shards:
        assert shards.shapes == {"x.gate_up_proj": (experts, blocks * 32, out), "x.bias": (2,)}
        assert torch.equal(shards["x.gate_up_proj"], wanted)
        shards.dtype = torch.bfloat16
        assert torch.equal(shards["x.gate_up_proj"], wanted.bfloat16())


def test_mxfp4_experts_equal_those_of_the_public_library(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    data, scale = randint(0, 256, 2, 6, 3, 16, seed=2).byte(), randint(100, 140, 2, 6, 3, seed=3).byte()
    save_file({"w_blocks": data, "w_scales": scale}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    with opened(tmp_path) as shards:
        shards.dtype = torch.bfloat16
        assert torch.equal(shards["w"], convert_moe_packed_tensors(data, scale))


@torch.no_grad()
def test_gpt_oss_in_mxfp4_computes_what_the_public_class_does(tmp_path):
    import transformers
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    family = Family.named("gpt_oss")
    config = family.small | {"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 3}
    model = af.build(family.spec_from(config)).double()
    af.save(model, tmp_path, format="hf")
    tensors = load_file(tmp_path / "model.safetensors")
    dense = {}
    for seed, name in enumerate([name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]):
        experts, into, out = tensors.pop(name).shape
        blocks = randint(0, 256, experts, out, into // 32, 16, seed=seed).byte()
        scale = randint(120, 126, experts, out, into // 32, seed=seed + 99).byte()
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scale}
        dense[name] = convert_moe_packed_tensors(blocks, scale).double()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    table = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    configure(tmp_path, quantization_config=table)
    ours = load(tmp_path, dtype=torch.float64)
    cls = transformers.GptOssForCausalLM
    public = (
        cls(cls.config_class(**config, attn_implementation="eager", experts_implementation="eager")).double().eval()
    )
    public.load_state_dict({n: t for n, t in (tensors | dense).items() if "_blocks" not in n and "_scales" not in n})
    ids = randint(3, 60, 2, 13, seed=5)
    with lifted():
        wanted = public(ids).logits
    assert_close("oracle", ours(ids).logits, wanted)


def test_fp8_experts_in_tensors_of_their_own_are_read(tmp_path):
    family = Family.named("qwen3_moe")
    torch.manual_seed(0)
    af.save(af.build(family.spec_from(family.small)), tmp_path / "plain", format="hf")
    af.save(af.build(family.spec_from(family.small)), tmp_path / "fp8", format="hf")
    tensors, plain = (load_file(tmp_path / n / "model.safetensors") for n in ("fp8", "plain"))
    for seed, name in enumerate(sorted(n for n in tensors if ".experts." in n)):
        stored, plain[name], table = fp8(*tensors.pop(name).shape, seed)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in stored.items()}
    tensors |= {name: tensor for name, tensor in plain.items() if ".experts." not in name}
    save_file(tensors, tmp_path / "fp8" / "model.safetensors")
    save_file(plain, tmp_path / "plain" / "model.safetensors")
    configure(tmp_path / "fp8", quantization_config=table)
    for mine, other in zip(load(tmp_path / "fp8").parameters(), load(tmp_path / "plain").parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("scale", [torch.float32, torch.uint8])
def test_fp8_blocks_equal_those_of_the_public_library(scale, tmp_path):
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight = torch.randn(2, 32, 64).to(torch.float8_e4m3fn)
    each = randint(100, 130, 2, 2, 4, seed=0).byte() if scale == torch.uint8 else torch.rand(2, 2, 4)
    save_file({"e.weight": weight, "e.weight_scale_inv": each}, tmp_path / "model.safetensors")
    table = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": table}))
    wanted = Fp8Dequantize(None)._dequantize_one(weight, each, torch.float32)
    with opened(tmp_path) as shards:
        assert torch.equal(shards["e.weight"], wanted)


@pytest.mark.parametrize(
    ("make", "more", "kind"),
    [
        (gptq, {"group": 16, "zero": 8}, "int4"), (gptq, {"group": 64, "zero": 8}, "int4"),
        (gptq, {"group": 64, "bits": 8, "zero": 128}, "int8"), (awq, {"group": 32, "zero": 8}, "int4"),
        (compressed, {"group": 32}, "int4"), (compressed, {"strategy": "channel"}, "int4"),
        (compressed, {"strategy": "tensor"}, "int4"),
    ],
)  # fmt: skip
@SLOW_HERE
def test_whole_numbers_that_ours_hold_are_taken_as_they_are_stored(make, more, kind, tmp_path):
    wanted = stored_folder(tmp_path, make, more, hidden_size=64, intermediate_size=64)
    model = load(tmp_path, quantize=kind, dtype=torch.float32)
    up = model.get_submodule("decoder.blocks.0.ffn.body.down").numbers
    same = wanted["model.layers.0.mlp.down_proj.weight"]
    if make is gptq and kind == "int8":
        # Numbers of -128 are none of ours.
        assert not torch.equal(up.floats(torch.float32), same)
    else:
        assert torch.equal(up.floats(torch.float32), same)
    merged = model.get_submodule("decoder.blocks.0.attention.body.k")
    assert merged.whole.numbers.group == up.group


def test_int8_of_each_output_is_taken_as_it_is_stored(tmp_path):
    wanted = stored_folder(tmp_path, int8_channels, {})
    model = load(tmp_path, quantize="int8")
    found = model.get_submodule("decoder.blocks.1.ffn.body.down").numbers
    assert torch.equal(found.floats(torch.float32), wanted["model.layers.1.mlp.down_proj.weight"])


def int8_channels(out, into, seed):
    stored, wanted, config = compressed(out, into, seed, form="int-quantized", bits=8, strategy="channel")
    wanted[stored["weight"] == -128] *= 127 / 128
    stored["weight"][stored["weight"] == -128] = -127
    exact = stored["weight"].float() * stored["weight_scale"].float()
    return stored, exact, config


@SLOW_HERE
def test_groups_out_of_order_are_quantised_anew(tmp_path):
    wanted = stored_folder(tmp_path, gptq, {"group": 16, "order": "activation"}, hidden_size=64, intermediate_size=64)
    model = load(tmp_path, quantize="int4")
    found = model.get_submodule("decoder.blocks.0.ffn.body.down").numbers.floats(torch.float32)
    same = wanted["model.layers.0.mlp.down_proj.weight"]
    assert not torch.equal(found, same)
    assert (found - same).abs().max() < 0.2 * same.abs().max()


@pytest.mark.parametrize(("make", "more"), [(compressed, {}), (gptq, {"zero": 8}), (gptq, {"zero": 8, "told": False})])
@SLOW_HERE
def test_smaller_last_group_is_quantised_anew(make, more, tmp_path):
    wanted = stored_folder(tmp_path, make, more | {"group": 64}, hidden_size=96, intermediate_size=96)
    model = load(tmp_path, quantize="int4")
    found = model.get_submodule("decoder.blocks.0.ffn.body.down").numbers.floats(torch.float32)
    same = wanted["model.layers.0.mlp.down_proj.weight"]
    assert (found - same).abs().max() < 0.2 * same.abs().max()


def test_modules_that_were_left_out_are_read_as_they_are(tmp_path):
    stored_folder(tmp_path / "quantised", gptq, {})
    plain = plain_folder(tmp_path / "plain")
    name = "model.layers.1.self_attn.o_proj."
    kept = load_file(plain / "model.safetensors")[f"{name}weight"]
    tensors = load_file(tmp_path / "quantised" / "model.safetensors")
    tensors = {held: tensor for held, tensor in tensors.items() if not held.startswith(name)}
    save_file(tensors | {f"{name}weight": kept}, tmp_path / "quantised" / "model.safetensors")
    assert torch.equal(load(tmp_path / "quantised").get_parameter("decoder.blocks.1.attention.body.o.weight"), kept)


def test_groups_of_modules_have_bits_of_their_own(tmp_path):
    wanted = stored_folder(tmp_path, compressed, {})
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.mlp.up_proj"
    stored, eight, more = compressed(48, 32, 5, bits=8, strategy="channel")
    tensors |= {f"{name}.{part}": tensor for part, tensor in stored.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    own = more["config_groups"]["group_0"] | {"targets": [r"re:.*layers\.0\.mlp\.up_proj$"]}
    config["config_groups"]["group_1"] = own
    configure(tmp_path, quantization_config=config)
    model = load(tmp_path)
    assert torch.equal(model.get_parameter("decoder.blocks.0.ffn.body.up.weight"), eight)
    other = wanted["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(model.get_parameter("decoder.blocks.1.ffn.body.up.weight"), other)


def test_dtype_of_a_quantised_folder_is_that_of_its_plain_tensors(tmp_path):
    stored_folder(tmp_path, fp8, {})
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {n: t.bfloat16() if t.dtype == torch.float32 and "scale" not in n else t for n, t in tensors.items()},
        tmp_path / "model.safetensors",
    )
    assert stored_dtype(tmp_path) == torch.bfloat16


def test_scales_of_activations_and_caches_are_passed_over(tmp_path):
    stored_folder(tmp_path, compressed, {"form": "float-quantized", "bits": 8, "strategy": "tensor"})
    tensors, plain = load_file(tmp_path / "model.safetensors"), load(tmp_path)
    more = {
        "model.layers.0.self_attn.q_proj.input_scale": torch.ones(1),
        "model.layers.0.self_attn.k_scale": torch.ones(1),
    }
    save_file(tensors | more, tmp_path / "model.safetensors")
    again = load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), again.parameters(), strict=True))


def test_quantised_checkpoint_converts_to_a_plain_one(tmp_path, capsys):
    from anyformer.cli.main import main

    wanted = stored_folder(tmp_path / "quantised", awq, {})
    assert main(["convert", str(tmp_path / "quantised"), str(tmp_path / "plain"), "--format", "hf"]) == 0
    assert "quantization_config" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())


Q = "model.layers.0.self_attn.q_proj."


def without(*parts):
    return lambda tensors: [tensors.pop(Q + part) for part in parts]


def changed(part, change):
    def make(tensors):
        tensors[Q + part] = change(tensors[Q + part]).contiguous()

    return make


def fewer_groups(tensors):
    tensors |= {Q + part: tensors[Q + part][:2].contiguous() for part in ("scales", "qzeros")}


@pytest.mark.parametrize(
    ("make", "more", "damage", "words"),
    [
        (gptq, {}, without("scales"), "scales: is missing"),
        (gptq, {}, without("qzeros"), "qzeros: is missing"),
        (gptq, {"order": "activation"}, without("g_idx"), "g_idx: is missing"),
        (gptq, {}, changed("qweight", lambda t: t.float()), "qweight: holds F32"),
        (gptq, {}, changed("qweight", lambda t: t.flatten()), "qweight: has shape (128,)"),
        (gptq, {}, changed("scales", lambda t: t[:, :-1]), "scales: has shape (4, 31)"),
        (gptq, {}, changed("qzeros", lambda t: t[:-1]), "qzeros: has shape"),
        (gptq, {}, changed("g_idx", lambda t: t[:-1]), "g_idx: has shape (31,)"),
        (gptq, {}, changed("g_idx", lambda t: t + 1), "g_idx: names groups from 1 to 4 of 4"),
        (gptq, {"told": False}, fewer_groups, "scales: has 2 groups, and 32 inputs in groups of 8 make 4"),
        (gptq, {}, fewer_groups, "scales: has 2 groups"),
        (awq, {}, fewer_groups, "scales: has 2 groups, and 32 inputs in groups of 8 make 4"),
        (awq, {}, without("scales"), "scales: is missing"),
        (awq, {}, changed("scales", lambda t: t[:3]), "scales: has shape (3, 32)"),
        (awq, {}, changed("qzeros", lambda t: t.long()), "qzeros: holds I64"),
        (fp8, {}, without("weight_scale_inv"), "weight_scale_inv: is missing"),
        (fp8, {}, changed("weight_scale_inv", lambda t: t[:1]), "weight_scale_inv: has shape (1, 2)"),
        (compressed, {}, without("weight_scale"), "weight_scale: is missing"),
        (compressed, {}, without("weight_shape"), "weight_shape: is missing"),
        (compressed, {}, changed("weight_packed", lambda t: t.to(torch.uint8)), "weight_packed: holds U8"),
        (compressed, {}, changed("weight_shape", lambda t: t * 2), "weight_shape: holds (64, 64)"),
        (compressed, {}, changed("weight_shape", lambda t: -t), "weight_shape: holds (-32, -32)"),
        (compressed, {"symmetric": False}, without("weight_zero_point"), "weight_zero_point: is missing"),
        (compressed, {"order": True}, changed("weight_g_idx", lambda t: t + 9), "weight_g_idx: names groups"),
    ],
)  # fmt: skip
def test_damaged_quantised_tensor_is_named_with_its_file(make, more, damage, words, tmp_path):
    stored_folder(tmp_path, make, more)
    tensors = load_file(tmp_path / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert f"{Q}{words}" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("blocks", "scales", "words"),
    [
        (torch.zeros(2, 3, 1, 16, dtype=torch.uint8), None, "w_scales: is missing"),
        (torch.zeros(2, 3, 1, 16, dtype=torch.int8), (2, 3, 1), "w_blocks: holds I8"),
        (torch.zeros(2, 3, 1, 15, dtype=torch.uint8), (2, 3, 1), "w_blocks: has shape (2, 3, 1, 15)"),
        (torch.zeros(3, 1, 16, dtype=torch.uint8), (3, 1), "w_blocks: has shape (3, 1, 16)"),
        (torch.zeros(2, 3, 1, 16, dtype=torch.uint8), (2, 3, 2), "w_scales: has shape (2, 3, 2)"),
    ],
)
def test_damaged_mxfp4_tensor_is_named_with_its_file(blocks, scales, words, tmp_path):
    tensors = {"w_blocks": blocks} | ({} if scales is None else {"w_scales": torch.zeros(scales, dtype=torch.uint8)})
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "mxfp4"}}))
    with pytest.raises(CheckpointError, match="w_") as caught, opened(tmp_path):
        pass
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method 'bitsandbytes' can't be read"),
        ({"quant_method": "hqq"}, "take the model that it was made from"),
        ({"quant_method": "quanto"}, "dequantize()"),
        ({"bits": 4}, "quant_method None can't be read"),
        ({"quant_method": "gptq", "bits": 3}, "bits: 3 can't be read (known: 2, 4, 8)"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format: 'marlin'"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"x": {}}}, "dynamic"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size: 0 is no size of groups"),
        ({"quant_method": "awq", "bits": 4, "group_size": "128"}, "group_size: '128' is no size of groups"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: 'gemv' can't be read (known: gemm)"),
        ({"quant_method": "fp8", "weight_block_size": [0, 1]}, "weight_block_size: [0, 1] is no pair"),
        ({"quant_method": "compressed-tensors"}, "config_groups: is missing"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "format: 'nvfp4-pack-quantized'"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 6}}}}, "6 bits of type None"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": 1}}, "config_groups"),
        ({"quant_method": ["gptq"]}, "quant_method ['gptq'] can't be read"),
    ],
)  # fmt: skip
def test_method_that_is_not_read_is_refused_by_name(table, words, tmp_path):
    plain_folder(tmp_path)
    configure(tmp_path, quantization_config=table)
    for read in (load, af.spec):
        with pytest.raises(SpecError) as caught:
            read(tmp_path)
        assert "quantization_config: " in str(caught.value)
        assert words in str(caught.value)
    with pytest.raises(AnyformerError):
        load(tmp_path, ignore_keys=("quantization_config",))


def test_whole_numbers_without_a_config_that_explains_them_are_refused(tmp_path):
    stored_folder(tmp_path, int8_channels, {})
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if "scale" not in n}, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"holds torch\.int8, and config\.json has no quantization_config"):
        load(tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in Quantization.kinds() if kind != "mxfp4"])
def test_peak_of_dequantising_stays_near_the_weight(kind, monkeypatch):
    import anyformer.families.quantization as module

    monkeypatch.setattr(module, "CHUNK", 100)
    makers = {"gptq": gptq, "awq": awq, "fp8": fp8, "fbgemm_fp8": fbgemm, "compressed-tensors": compressed}
    stored, wanted, config = makers[kind](40, 32, 3)
    method = quantization(config)
    header = {f"x.{name}": Header(tensor) for name, tensor in stored.items()}
    (weight,) = method.weights(header, lambda name: stored[name.removeprefix("x.")])
    seen = []
    rows = type(method).rows
    monkeypatch.setattr(type(method), "rows", lambda self, *given: seen.append(given[-1]) or rows(self, *given))
    parts = {part: stored[name.removeprefix("x.")] for part, name in weight.parts.items()}
    assert torch.equal(method.dequantised(weight, parts, torch.float32), wanted)
    assert [(s.start, s.stop) for s in seen] == [(at, min(at + 3, 40)) for at in range(0, 40, 3)]


class Header:
    """What a header says of a tensor."""

    def __init__(self, tensor):
        names = {torch.int32: "I32", torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16"}
        names |= {torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3", torch.int8: "I8"}
        self.dtype, self.shape = names[tensor.dtype], tuple(tensor.shape)


def test_headers_know_the_dtype_of_exponents(tmp_path):
    save_file({"a": torch.ones(4).to(torch.float8_e8m0fnu)}, tmp_path / "a.safetensors")
    assert read_header(tmp_path / "a.safetensors").tensors["a"].dtype == "F8_E8M0"
