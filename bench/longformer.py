"""Longformer-base's shape at 8192 tokens: our model against the public LongformerModel with the same weights.

    python bench/longformer.py [--rounds 5] [--tokens 8192] [--depth 12]

The first token is global. Both run in one process, in turns, in eval mode and without gradients; the figure is the best
of the rounds. Printed: tokens/s, the most bytes at once beyond the weights, and the ratios to the public model.
"""

import argparse

import torch
from core import best_of
from transformers import LongformerConfig, LongformerForMaskedLM

from anyformer.evals.memory import used
from anyformer.families.hf_bridge import from_hf
from anyformer.model.eval_mode import without_head

VOCAB = 1000
"""Tokens take no part in the comparison."""


def pair(tokens, depth, width, heads):
    """The public model and ours, without their heads."""
    config = LongformerConfig(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads,
        intermediate_size=4 * width, max_position_embeddings=tokens + 2, attention_window=[512] * depth, pad_token_id=1,
        type_vocab_size=1, layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs = LongformerForMaskedLM(config).eval()
    return theirs.longformer, without_head(from_hf(theirs))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    theirs, ours = pair(args.tokens, args.depth, args.width, args.heads)
    ids = torch.randint(5, VOCAB, (1, args.tokens))
    marks = torch.zeros_like(ids)
    marks[:, 0] = 1

    def public():
        with torch.no_grad():
            return theirs(ids, global_attention_mask=marks).last_hidden_state

    def own():
        with torch.no_grad():
            return ours(ids, global_mask=marks).hidden

    gap = (own() - public()).abs().max().item()
    assert gap < 1e-3, f"the two models differ by {gap}"
    best = best_of(args.rounds, own, public)
    peaks = [used(own).peak, used(public).peak]
    shape = f"{args.depth} layers of width {args.width}, window 512, 1 global token"
    print(f"torch {torch.__version__}, {args.threads} threads; {args.tokens} tokens, {shape}")
    print(f"{'':12}{'tokens/s':>12}{'peak':>12}")
    for name, seconds, peak in zip(("anyformer", "public"), best, peaks, strict=True):
        print(f"{name:12}{args.tokens / seconds:12.0f}{peak / 2**20:9.1f} MB")
    print(f"{'ratio':12}{best[1] / best[0]:11.2f}x{peaks[0] / peaks[1]:11.2f}x")


if __name__ == "__main__":
    main()
