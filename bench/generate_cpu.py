"""Decoding on a CPU, in fp32 and in int8, against `generate` of transformers with the same weights.

    python bench/generate_cpu.py [--quick] [--picture steps.png]

All run in one process, in turns, and the figure is the best of the rounds. Printed: tokens per second, share of the
machine's limit (bytes of weights and keys that a token must read, at the rate of a large sum in the same run), ratio to
the peer (above 1: we are faster). Then 100 new tokens after a prompt of 400 with and without a cache, and a picture of
the time per step against the length.
"""

import argparse
import copy
import statistics
import time
import warnings

import torch
import transformers
from core import best_of

import anyformer as af
from anyformer.model.eval_mode import without_head
from anyformer.model.quantize import quantize

SHAPES = {
    "15M Llama": transformers.LlamaConfig(
        vocab_size=32000, hidden_size=288, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=6,
        intermediate_size=768, max_position_embeddings=512, tie_word_embeddings=True,
    ),
    "124M GPT-2": transformers.GPT2Config(),
    "124M Llama": transformers.LlamaConfig(
        vocab_size=32000, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=12,
        intermediate_size=2048, max_position_embeddings=1024, tie_word_embeddings=False,
    ),
}  # fmt: skip
PROMPT = 16


def pair(config):
    """Theirs and ours with the same random weights, checked to give the same logits, and ours in int8."""
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    ours = af.from_hf(theirs).eval()
    ids = torch.randint(0, config.vocab_size, (1, 32))
    with torch.no_grad():
        wanted = theirs(ids).logits
        gap = ((ours(ids).logits - wanted).abs().max() / wanted.abs().max()).item()
    assert gap < 1e-4, f"the two models differ by {gap}"
    return theirs, ours, quantize(copy.deepcopy(ours), "int8")


def read_rate(rounds=7):
    """Bytes per second of a read that no cache holds."""
    big = torch.randn(64 * 2**20)
    return big.numel() * 4 / best_of(rounds, big.sum)[0]


def bytes_read(model, length, *, int8):
    """What a token must read: all weights but the rows of a table that is only looked up, and keys and values."""
    tied = model.spec.head.tied
    held = [p.numel() * p.element_size() for p in model.parameters() if p is not model.embed.tokens.weight]
    held += [b.numel() * b.element_size() for n, b in model.named_buffers() if n.endswith(("data_OI", "scale"))]
    table = model.embed.tokens.weight
    once = table.numel() * table.element_size() if tied and not int8 else 0
    return sum(held) + once + model.spec.count().kv_bytes(length, torch.float32)


def decoding(name, new, rounds, read):
    """Tokens per second of theirs, ours, and ours in int8: prompt and new tokens, as a user calls it."""
    theirs, ours, small = pair(SHAPES[name])
    ids = torch.randint(0, ours.spec.vocab, (1, PROMPT))
    config = transformers.GenerationConfig(max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)

    def their_run():
        with torch.inference_mode():
            assert theirs.generate(ids, generation_config=config).shape[1] == PROMPT + new

    def our_run(model):
        return lambda: af.generate(model, ids, max_new_tokens=new, stop=())

    times = best_of(rounds, their_run, our_run(ours), our_run(small))
    for label, model, seconds in (("fp32", ours, times[1]), ("int8", small, times[2])):
        share = bytes_read(model, PROMPT + new // 2, int8=label == "int8") * new / seconds / read
        print(
            f"{name + ', ' + label:24}{new / seconds:8.1f} tok/s{new / times[0]:10.1f} theirs{share:10.0%} of limit"
            f"{times[0] / seconds:8.2f} x",
            flush=True,
        )


def cached_and_not(prompt, new, runs):
    """100 new tokens after 400 with and without a cache: the same kernels, and logits of the last token only."""
    _, ours, _ = pair(SHAPES["124M GPT-2"])
    body, model = without_head(ours), ours
    ids = torch.randint(0, ours.spec.vocab, (1, prompt))

    def with_cache(steps):
        cache = model.new_cache(1, prompt + new)
        hidden = body(ids, cache=cache).hidden[:, -1]
        for _ in range(new):
            begin = time.perf_counter()
            token = model.head(hidden).argmax(-1)[:, None]
            hidden = body(token, cache=cache).hidden[:, -1]
            steps.append(time.perf_counter() - begin)

    def without(steps):
        row = ids
        for _ in range(new):
            begin = time.perf_counter()
            row = torch.cat((row, model.head(body(row).hidden[:, -1]).argmax(-1)[:, None]), 1)
            steps.append(time.perf_counter() - begin)

    found = {"cached": [], "uncached": []}
    spans = {name: [] for name in found}
    with torch.inference_mode():
        for _ in range(runs):
            for name, run in (("cached", with_cache), ("uncached", without)):
                steps, begin = [], time.perf_counter()
                run(steps)
                spans[name].append(time.perf_counter() - begin)
                found[name].append(steps)
    for name, times in spans.items():
        spread = statistics.stdev(times) if len(times) > 1 else 0.0
        print(f"124M, {prompt} + {new} tokens, {name:9}{statistics.mean(times):8.2f} s +- {spread:.2f} of {runs} runs")
    ratio = statistics.mean(spans["uncached"]) / statistics.mean(spans["cached"])
    print(f"124M, {prompt} + {new} tokens, the cache makes it {ratio:.1f} x faster")
    return {name: [min(step) * 1e3 for step in zip(*steps, strict=True)] for name, steps in found.items()}


def draw(steps, prompt, place):
    """Milliseconds of each step against the tokens before it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), constrained_layout=True)
    for name, times in steps.items():
        axes.plot(range(prompt, prompt + len(times)), times, label=name)
    axes.set(xlabel="tokens before the step", ylabel="milliseconds per step", yscale="log", title="124M, fp32, CPU")
    axes.legend()
    figure.savefig(place, dpi=120)
    print(f"drawn: {place}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds, no picture unless asked for")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--picture", metavar="PNG", help="where the time per step is drawn")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rounds = 2 if args.quick else args.rounds
    read = read_rate()
    print(f"torch {torch.__version__}, {args.threads} threads, {read / 1e9:.1f} GB/s read, best of {rounds}")
    for name in args.shapes:
        decoding(name, 16 if args.quick else 100, rounds, read)
    prompt, new, runs = (100, 8, 2) if args.quick else (400, 100, 7)
    steps = cached_and_not(prompt, new, runs)
    if args.picture or not args.quick:
        draw(steps, prompt, args.picture or "steps.png")


if __name__ == "__main__":
    main()
