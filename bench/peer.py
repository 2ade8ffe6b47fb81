"""The peer: a decoder as one would write it by hand, with no choices left: RMSNorm, RoPE, GQA, SwiGLU, SDPA."""

import torch
from torch import nn
from torch.nn import functional as F


class PlainBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.dim, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, width, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x, cos, sin, cache, start):
        batch, tokens, _ = x.shape
        h = self.norm1(x)
        q = self.q(h).view(batch, tokens, self.heads, self.dim).transpose(1, 2)
        k = self.k(h).view(batch, tokens, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v(h).view(batch, tokens, self.kv_heads, self.dim).transpose(1, 2)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        if cache is not None:
            keys, values = cache
            keys[:, :, start : start + tokens] = k
            values[:, :, start : start + tokens] = v
            k, v = keys[:, :, : start + tokens], values[:, :, : start + tokens]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0 and tokens > 1, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, tokens, -1))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class PlainDecoder(nn.Module):
    def __init__(self, vocab, width, depth, heads, kv_heads, ffn, context):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads, kv_heads, ffn) for _ in range(depth))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.head = nn.Linear(width, vocab, bias=False)
        dim = width // heads
        angle = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, caches=None, start=0):
        x = self.embed(ids)
        cos, sin = (t[start : start + ids.shape[1]] for t in (self.cos, self.sin))
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, None if caches is None else caches[i], start)
        return self.head(self.norm(x))

    def new_cache(self, batch, length):
        b = self.blocks[0]
        return [tuple(torch.zeros(batch, b.kv_heads, length, b.dim) for _ in range(2)) for _ in self.blocks]


@torch.no_grad()
def copy_weights(ours, peer):
    """Give the peer the weights of our model, tensor by tensor."""
    peer.embed.weight.copy_(ours.embed.tokens.weight)
    peer.norm.weight.copy_(ours.decoder.final_norm.weight)
    peer.head.weight.copy_(ours.head.weight)
    for a, b in zip(ours.decoder.blocks, peer.blocks, strict=True):
        b.norm1.weight.copy_(a.attention.inner.weight)
        b.norm2.weight.copy_(a.ffn.inner.weight)
        for name in "qkvo":
            getattr(b, name).weight.copy_(getattr(a.attention.body, name).weight)
        for name in ("gate", "up", "down"):
            getattr(b, name).weight.copy_(getattr(a.ffn.body, name).weight)
