"""The training step on a CUDA device: the GPT-2 124M shape against nanoGPT, the Llama 1B shape against transformers.

    python bench/train_gpu.py [gpt2] [llama] [--nanogpt model.py] [--rounds 5] [--kinds block,model] [--tune]

gpt2: 32 rows of 1024 tokens, bf16 autocast; llama: 8 rows of 2048, pure bf16. Random tokens, AdamW (fused), everything
compiled. nanoGPT's model.py is not part of this project: give its path. `--tune` also tries inductor's search for better
launch sizes. A figure is the median of rounds of 3 steps; the limit is 775 TFLOP/s, a bf16 product on an H200.
"""

import argparse
import importlib.util
import statistics
import time

import torch

import anyformer as af

LIMIT = 775e12
SHAPES = {
    "gpt2": {
        "vocab": 50304, "width": 768, "depth": 12, "context": 1024, "attention": {"heads": 12, "bias": "qkvo"},
        "position": {"kind": "learned"}, "ffn": {"kind": "gelu", "width": 3072, "bias": True},
        "norm": {"kind": "layernorm"}, "head": {"kind": "lm", "tied": True},
    },
    "llama": {
        "vocab": 128256, "width": 2048, "depth": 16, "context": 2048, "attention": {"heads": 32, "kv_heads": 8},
        "position": {"kind": "rope", "theta": 500000.0}, "ffn": {"kind": "swiglu", "width": 8192},
        "norm": {"kind": "rmsnorm", "eps": 1e-5}, "head": {"kind": "lm", "tied": True},
    },
}  # fmt: skip
BATCH = {"gpt2": (32, 1024), "llama": (8, 2048)}


def timed(step, rounds):
    """Seconds of a step, GiB at most, seconds until it was ready."""
    begin = time.perf_counter()
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    ready = time.perf_counter() - begin
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / 3)
    return statistics.median(times), torch.cuda.max_memory_allocated() / 2**30, ready


def stepper(parameters, loss, *, autocast):
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            found = loss()
        found.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(shape, kind):
    from anyformer.train.compile import compiled

    torch.manual_seed(0)
    pure = shape == "llama"
    model = af.build(af.spec(SHAPES[shape])).to("cuda", torch.bfloat16 if pure else torch.float32).train()
    compiled(model, kind)
    ids = torch.randint(0, 50257, BATCH[shape], device="cuda")
    return stepper(model.parameters(), lambda: model(ids, labels=ids, return_logits=False).loss, autocast=not pure)


def nanogpt(path):
    spec = importlib.util.spec_from_file_location("nanogpt", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows, tokens = BATCH["gpt2"]
    config = module.GPTConfig(
        block_size=tokens, vocab_size=50304, n_layer=12, n_head=12, n_embd=768, dropout=0.0, bias=True
    )
    model = module.GPT(config).cuda()
    graph = torch.compile(model)
    ids = torch.randint(0, 50257, (rows, tokens + 1), device="cuda")
    read, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    return stepper(model.parameters(), lambda: graph(read, wanted)[1], autocast=True)


def transformers():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, rope_theta=500000.0, tie_word_embeddings=True, max_position_embeddings=2048,
        rms_norm_eps=1e-5, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
    graph = torch.compile(model)
    ids = torch.randint(0, 50257, BATCH["llama"], device="cuda")
    return stepper(model.parameters(), lambda: graph(input_ids=ids, labels=ids).loss, autocast=False)


def measure(shape, given):
    rows, tokens = BATCH[shape]
    depth, width = SHAPES[shape]["depth"], SHAPES[shape]["width"]
    weights = 123_688_704 if shape == "gpt2" else 1_235_814_400
    work = rows * tokens * (6 * weights + 12 * depth * width * tokens)
    makers = {}
    if shape == "llama":
        makers["transformers, compiled"] = transformers
    elif given.nanogpt:
        makers["nanoGPT, compiled"] = lambda: nanogpt(given.nanogpt)
    for kind in given.kinds.split(","):
        for tune in (False, True) if given.tune else (False,):
            makers[f"anyformer, compile {kind}{', tuned' if tune else ''}"] = lambda kind=kind: ours(shape, kind)
    base = None
    for name, make in makers.items():
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        torch._inductor.config.coordinate_descent_tuning = name.endswith("tuned")
        took, peak, ready = timed(make(), given.rounds)
        base = base or (took, peak)
        print(
            f"{shape:<6} {name:<32} {rows * tokens / took:>9,.0f} tok/s {work / took / LIMIT:6.1%} of the limit "
            f"{base[0] / took:6.3f}x {peak:6.1f} GiB ({peak / base[1]:.2f}x), ready in {ready:.0f} s",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", help="gpt2, llama; unset: both")
    parser.add_argument("--nanogpt", help="path of nanoGPT's model.py")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default="block")
    parser.add_argument("--tune", action="store_true")
    given = parser.parse_args()
    for shape in given.shapes or list(SHAPES):
        if shape not in SHAPES:
            parser.error(f"unknown: {shape}; known: {', '.join(SHAPES)}")
        measure(shape, given)


if __name__ == "__main__":
    main()
