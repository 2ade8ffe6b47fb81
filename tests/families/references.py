"""Classes that the public library does not have, written here from what was published about them.

They are built, saved and loaded like its own, so that the whole of the parity protocol runs on them.
"""

import torch
import transformers
from torch import nn
from transformers.modeling_outputs import CausalLMOutput


class Phi3SmallConfig(transformers.PretrainedConfig):
    """The keys of the released config.json, with the values of Phi-3-small 8k."""

    model_type = "phi3small"

    vocab_size: int = 100352
    max_position_embeddings: int = 8192
    hidden_size: int = 4096
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    hidden_act: str = "gegelu"
    gegelu_limit: float = 20.0
    ff_intermediate_size: int = 14336
    ff_dim_multiplier: float | None = None
    gegelu_pad_to_256: bool = True
    blocksparse_block_size: int = 64
    blocksparse_num_local_blocks: int = 16
    blocksparse_vert_stride: int = 8
    blocksparse_homo_head_pattern: bool = False
    blocksparse_triton_kernel_block_size: int = 64
    dense_attention_every_n_layers: int = 2
    rope_embedding_base: float = 1e6
    rope_position_scale: float = 1.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    mup_use_scaling: bool = True
    mup_attn_multiplier: float = 1.0
    mup_embedding_multiplier: float = 10.0
    mup_width_multiplier: float = 8.0
    embedding_dropout_prob: float = 0.1
    attention_dropout_prob: float = 0.0
    ffn_dropout_prob: float = 0.1
    reorder_and_upcast_attn: bool = False
    bos_token_id: int | None = 100257
    eos_token_id: int | None = 100257
    tie_word_embeddings: bool = True


class Phi3SmallAttention(nn.Module):
    """Queries of the heads that share a key, the key and the value stand together in one projection."""

    def __init__(self, config: Phi3SmallConfig, layer: int) -> None:
        super().__init__()
        self.config, self.sparse = config, (layer + 1) % config.dense_attention_every_n_layers != 0
        self.heads, self.dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.groups = config.num_key_value_heads or self.heads
        self.query_key_value = nn.Linear(config.hidden_size, (self.heads + 2 * self.groups) * self.dim)
        self.dense = nn.Linear(self.heads * self.dim, config.hidden_size)

    def seen(self, length: int) -> torch.Tensor:
        """Who sees whom, token by token (H,T,T): near blocks, and stripes that move from head to head."""
        c, place = self.config, torch.arange(length)
        past = place[None, :] <= place[:, None]
        if not self.sparse:
            return past.expand(self.heads, -1, -1)
        block = place // c.blocksparse_block_size
        near = block[:, None] - block[None, :] < c.blocksparse_num_local_blocks
        step = 0 if c.blocksparse_homo_head_pattern else max(1, int(c.blocksparse_vert_stride / self.heads))
        rows = [(block + head * step + 1) % c.blocksparse_vert_stride == 0 for head in range(self.heads)]
        return past & (near | torch.stack(rows)[:, None, :])

    def forward(self, x: torch.Tensor, places: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        together = self.query_key_value(x).view(rows, length, self.groups, -1, self.dim)
        q = together[..., :-2, :].flatten(2, 3).transpose(1, 2)
        k, v = (together[..., i, :].transpose(1, 2).repeat_interleave(q.shape[1] // self.groups, 1) for i in (-2, -1))
        half = self.dim // 2
        rate = self.config.rope_embedding_base ** (-torch.arange(half, dtype=x.dtype) / half)
        angle = (places.to(x.dtype)[:, None, :, None] * rate).repeat(1, 1, 1, 2)
        q, k = (y * angle.cos() + torch.cat((-y[..., half:], y[..., :half]), -1) * angle.sin() for y in (q, k))
        divisor = self.dim / self.config.mup_attn_multiplier if self.config.mup_use_scaling else self.dim**0.5
        scores = q @ k.mT / divisor
        # Blocks are counted from a row's first real token.
        order = places.clamp(min=0)
        seen = self.seen(length)[:, order[:, :, None], order[:, None, :]].transpose(0, 1) & real[:, None, None, :]
        # A row of padding sees itself, so that no number is lost.
        seen = seen | torch.eye(length, dtype=torch.bool)
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.dense((weights @ v).transpose(1, 2).flatten(2))


class Phi3SmallMLP(nn.Module):
    """Even rows of the first matrix are the gate, odd ones what it opens for."""

    def __init__(self, config: Phi3SmallConfig) -> None:
        super().__init__()
        self.limit = config.gegelu_limit
        self.up_proj = nn.Linear(config.hidden_size, 2 * config.ff_intermediate_size)
        self.down_proj = nn.Linear(config.ff_intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.up_proj(x)
        gate, line = both[..., ::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
        return self.down_proj(gate * torch.sigmoid(1.702 * gate) * (line + 1))


class Phi3SmallLayer(nn.Module):
    """Attention, then the feed-forward, each after a norm."""

    def __init__(self, config: Phi3SmallConfig, layer: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Phi3SmallAttention(config, layer), Phi3SmallMLP(config)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, x: torch.Tensor, places: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), places, real)
        return x + self.mlp(self.post_attention_layernorm(x))


class Phi3SmallBody(nn.Module):
    """All but the head."""

    def __init__(self, config: Phi3SmallConfig) -> None:
        super().__init__()
        self.multiplier = config.mup_embedding_multiplier
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Phi3SmallLayer(config, i) for i in range(config.num_hidden_layers))
        self.final_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)

    def forward(self, ids: torch.Tensor, places: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids) * self.multiplier
        for layer in self.layers:
            x = layer(x, places, real)
        return self.final_layernorm(x)


class Phi3SmallForCausalLM(transformers.PreTrainedModel):
    """Phi-3-small, without a cache."""

    config_class = Phi3SmallConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Phi3SmallConfig) -> None:
        super().__init__(config)
        self.model = Phi3SmallBody(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> CausalLMOutput:
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        places = real.cumsum(-1) - 1 if position_ids is None else position_ids
        hidden = self.model(input_ids, places, real.bool())
        return CausalLMOutput(logits=self.lm_head(hidden) / self.config.mup_width_multiplier)


REFERENCES = {cls.__name__: cls for cls in (Phi3SmallForCausalLM,)}
