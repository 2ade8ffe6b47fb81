"""Types of published text models that can't be read yet, and what each of them would need.

A test holds the list against the public library's own: every type of a causal, masked or sequence-to-sequence language
model is either a family's or stands here, never both.
"""

import functools

NEEDS: dict[str, str] = {
    "multi-head latent attention": "axk1 deepseek_v2 deepseek_v3 glm4_moe_lite kimi_k2 kimi_k25 longcat_flash minicpm3 youtu",
    "multi-head latent attention over keys that an indexer selects": "axk2 deepseek_v32 glm_moe_dsa hy_v4",
    "compressed keys and values, several residual streams and routing by token id": "deepseek_v4",
    "a gate on the output of attention": "afmoe beam laguna",
    "gated delta networks in place of attention": (
        "kimi_linear bailing_hybrid olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp "
        "qwen4_exp_text"
    ),
    "state-space layers": ("bamba falcon_h1 falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h zamba zamba2"),
    "linear attention with decay": "minimax",
    "recurrent layers": "recurrent_gemma rwkv xlstm",
    "short convolutions in place of attention": "lfm2 lfm2_moe",
    "convolved queries and keys, and a router with a state": "zaya",
    "relative logits from the content and short convolutions": "inkling_text",
    "attention over blocks that an indexer selects": "minimax_m3_vl_text",
    "embeddings for each layer, AltUp and sparse activations": "gemma3n gemma3n_text",
    "embeddings for each layer, and keys and values shared by layers": (
        "gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_text"
    ),
    "an activation with learned slopes (xIELU)": "apertus",
    "norms within attention and within the feed-forward": "bitnet",
    "a scaled sum of routed and shared experts": "cohere2_moe",
    "the difference of two attentions": "diffllama",
    "experts among attention heads": "jetmoe",
    "a router that selects by logits": "kolibri1",
    "a router by sparsemixer": "phimoe",
    "values of another width than keys": "mimo_v2_flash",
    "a dynamic mask of values, and experts by product keys": "doge",
    "two stacks that are run in turns": "hrm_text",
    "bytes in patches of learned length": "blt",
    "segments with relations among them": "cpmant",
    "predictions of several future tokens by streams": "prophetnet",
    "permuted factorisations with two streams": "xlnet",
    "cross-attention to an image": "git mllama",
    "image tokens beside those of the text (its text model alone, emu3_text_model, is read)": "emu3",
    "an input that is no text (images or sound)": (
        "audioflamingo3 fuyu glmasr got_ocr2 granite_speech granite_speech_plus modernvbert moshi "
        "moss_transcribe_diarize musicflamingo musicgen musicgen_melody nemo_speechlm neomme phi4_multimodal qwen2_audio "
        "qwen3_asr seamless_m4t seamless_m4t_v2 trocr ultravbert vibevoice_asr voxtral voxtral_realtime whisper"
    ),
    "another width of the table at the output than at the input": "rembert",
    "embeddings of shapes and sounds of characters": "roc_bert",
    "adapters for each language": "xmod",
    "adapters for each task": "jina_embeddings_v3",
    "embeddings of languages": "flaubert xlm",
    "convolutions beside attention": "convbert",
    "attention by content and relative position, with both projected together": "deberta",
    "proteins in place of text, and the rescaling of masked input": "esm",
    "proteins in place of text": "esmc",
    "a Fourier transform in place of attention": "fnet",
    "layers that pool the sequence": "funnel",
    "integer arithmetic in training": "ibert",
    "coordinates on a page": "layoutlm",
    "entities beside words": "luke",
    "bottlenecks around every layer": "mobilebert",
    "an approximation of attention that only it has": "mra nystromformer yoso",
    "a latent array that reads the text": "perceiver",
    "grouped convolutions in place of projections": "squeezebert",
    "cells of a table": "tapas",
    "a prediction head of two layers": "ultrabert",
    "two models of any kind, joined by cross-attention": "encoder-decoder",
    "local attention with global tokens made on the way": "longt5 pegasus_x",
    "experts of limited capacity": "nllb-moe switch_transformers",
    "one attention over source and target": "t5gemma2",
    "stacks of two widths": "t5gemma",
    "a norm on the decoder's tokens before their positions, and a scale of the source's tokens only": "blenderbot-small",
}
"""What a model would need here -> the types that need it."""


@functools.cache
def unsupported() -> dict[str, str]:
    """Type -> what it would need."""
    return {name: need for need, names in sorted(NEEDS.items()) for name in names.split()}
