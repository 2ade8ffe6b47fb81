"""Continuous batching of mixed requests, against transformers' padded generate with the same weights.

    python bench/batching.py [--rounds 3] [--seed 0]          32 requests, 15M shape in fp32, on a CPU
    python bench/batching.py --device cuda                    256 requests, Qwen3-0.6B shape in bf16, ours only

CPU: prompts of 16 to 256 tokens and answers of 16 to 256, each length drawn evenly and apart from the others; random
weights, the likeliest token, no stop tokens. The peer reads all 32 in one batch, padded on the left to the longest
prompt, and goes on until the longest answer is there: what rows make after their own answer is not counted. Both run in
one process, in turns; the best of the rounds counts. Printed: real tokens for each second, how many tokens a padded
batch makes for each real one, and how much of that the ratio of the two times reaches (1: all that padding costs is won).
CUDA: prompts of 100 to 1024 tokens and answers of 100 to 1024; new tokens for each second, the captures of steps apart.
"""

import argparse
import random
import time

import torch

import anyformer as af
from anyformer.generation.engine import Engine

SMALL = dict(
    vocab=8192, width=320, depth=8, context=512, attention={"heads": 10, "kv_heads": 5}, ffn={"kind": "swiglu", "width": 896}
)  # fmt: skip


def mix(count, low, high, vocab, seed):
    """Prompts, and how long their answers are."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(vocab) for _ in range(rng.randint(low, high))] for _ in range(count)]
    return prompts, [rng.randint(low, high) for _ in range(count)]


def ours(model, prompts, news, **sizes):
    """Seconds, the engine's own figures, and the answers."""
    engine = Engine(model, **sizes)
    began = time.perf_counter()
    requests_ = engine.run(
        {"input_ids": p, "max_new_tokens": n, "stop": ()} for p, n in zip(prompts, news, strict=True)
    )
    if engine.pool.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, engine.stats, [request.sequences[0].new for request in requests_]


def theirs(peer, prompts, news):
    """Seconds, and the answers of a padded batch, each cut to its own length."""
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    config = GenerationConfig(max_new_tokens=max(news), min_new_tokens=max(news), do_sample=False, pad_token_id=0)
    began = time.perf_counter()
    with torch.inference_mode():
        found = peer.generate(ids, attention_mask=mask, generation_config=config)
    seconds = time.perf_counter() - began
    return seconds, [row[width : width + n].tolist() for row, n in zip(found, news, strict=True)]


def on_cpu(rounds, seed):
    model = af.build(af.spec("llama-7b", SMALL), seed=0).eval()
    peer = af.to_hf(model).eval()
    prompts, news = mix(32, 16, 256, SMALL["vocab"], seed)
    real, padded = sum(map(len, prompts)) + sum(news), 32 * (max(map(len, prompts)) + max(news))
    sizes = {"max_num_seqs": 32, "max_model_len": 512, "block_size": 16}
    ours(model, prompts[:2], [4, 4], **sizes)
    best = [float("inf")] * 2
    for _ in range(rounds):
        seconds, stats, mine = ours(model, prompts, news, **sizes)
        best[0] = min(best[0], seconds)
        seconds, other = theirs(peer, prompts, news)
        best[1] = min(best[1], seconds)
    same = sum(a == b for a, b in zip(mine, other, strict=True))
    ratio, gain = padded / real, best[1] / best[0]
    print(f"32 requests, {sum(map(len, prompts))} tokens in, {sum(news)} out, {torch.get_num_threads()} threads")
    print(f"continuous batching: {best[0]:.2f} s, {sum(news) / best[0]:.0f} new tokens/s; {stats}")
    print(f"transformers, padded: {best[1]:.2f} s, {sum(news) / best[1]:.0f} new tokens/s")
    print(f"padded / real tokens: {ratio:.2f}; gain {gain:.2f} = {gain / ratio:.2f} of it; equal answers {same} of 32")


def on_cuda(seats, count, seed, budget):
    model = af.build(af.spec("qwen3-0.6b"), device="cuda", dtype=torch.bfloat16, seed=0).eval()
    prompts, news = mix(count, 100, 1024, model.spec.vocab, seed)
    engine = Engine(model, max_num_seqs=seats, max_model_len=2048, max_num_batched_tokens=budget, prefill_chunk=1024)
    asked = [{"input_ids": p, "max_new_tokens": n, "stop": ()} for p, n in zip(prompts, news, strict=True)]
    # Steps are captured, and kernels compiled, once for each size of a batch.
    began = time.perf_counter()
    engine.run([{**each, "max_new_tokens": 2 + i // 8} for i, each in enumerate(asked)])
    torch.cuda.synchronize()
    print(f"warm after {time.perf_counter() - began:.1f} s")
    engine.pool.shares, engine.stats.seconds, engine.stats.new_tokens = False, 0.0, 0
    began = time.perf_counter()
    engine.run(asked)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    print(f"{count} requests, {sum(map(len, prompts))} tokens in, {sum(news)} out: {seconds:.2f} s")
    print(f"{sum(news) / seconds:.0f} new tokens/s; {engine.stats}")


def main():
    parser = argparse.ArgumentParser(description="Continuous batching of mixed requests.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seats", type=int, default=256)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--budget", type=int, default=8192)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.device == "cuda":
        on_cuda(given.seats, given.requests, given.seed, given.budget)
    else:
        on_cpu(given.rounds, given.seed)


if __name__ == "__main__":
    main()
