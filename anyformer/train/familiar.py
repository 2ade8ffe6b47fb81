"""Names that people bring from other trainers, and what a config calls them."""

from __future__ import annotations

from collections.abc import Mapping

RATES = "optim.matrices, optim.tables and optim.vectors: a learning rate for each group of parameters"
STEPS, ROWS, LENGTH = (
    "steps in [[stages]]",
    "batch in [[stages]], rows of a step over all processes",
    "length in [[stages]]",
)
WARMUP, SCHEDULE, CLIP = "schedule.warmup, a share of the run below 1 and steps from 1 on", "schedule.kind", "run.clip"
BETAS, MICRO, NARROW = (
    "optim.betas = [0.9, 0.95]",
    "compute.micro, rows that go through the model at once",
    ('compute.autocast = "bfloat16", or compute.dtype for the weights too'),
)
RECOMPUTE, FOLDER, TOKENS = "compute.recompute", "run.folder", "data.folder, made by anyformer tokenize"
DEPTH, WIDTH, HEADS = "model.spec.depth", "model.spec.width", "model.spec.attention.heads"
BASE = "model.base for the architecture, model.weights for trained weights"

FAMILIAR: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learning_rate", "max_lr", "peak_lr", "base_lr"), RATES),
    **dict.fromkeys(("min_lr", "lr_end", "min_learning_rate"), "schedule.floor, a share of the peak"),
    **dict.fromkeys(("weight_decay", "wd"), "optim.decay.matrices, and tables, head, vectors beside it"),
    **dict.fromkeys(("beta1", "beta2", "adam_beta1", "adam_beta2"), BETAS),
    **dict.fromkeys(("epsilon", "adam_eps", "adam_epsilon"), "optim.eps"),
    **dict.fromkeys(("optimizer", "optimiser"), "optim.kind"),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule"), SCHEDULE),
    **dict.fromkeys(("warmup_steps", "warmup_iters", "warmup_ratio", "lr_warmup_steps", "warmup"), WARMUP),
    **dict.fromkeys(("batch_size", "train_batch_size", "global_batch_size", "per_device_train_batch_size"), ROWS),
    **dict.fromkeys(("micro_batch_size", "gradient_accumulation_steps", "grad_accum"), MICRO),
    **dict.fromkeys(("max_steps", "num_steps", "total_steps", "max_iters", "train_steps", "iterations"), STEPS),
    **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs"), f"{STEPS}; --dry-run says how many epochs they are"),
    **dict.fromkeys(("seq_len", "seq_length", "sequence_length", "block_size", "max_seq_length", "max_seq_len"), LENGTH),
    **dict.fromkeys(("grad_clip", "clip_grad", "gradient_clip", "max_grad_norm", "gradient_clip_val"), CLIP),
    **dict.fromkeys(("seed", "random_seed"), "run.seed"),
    **dict.fromkeys(("output_dir", "out_dir", "save_dir"), FOLDER),
    **dict.fromkeys(("eval_interval", "eval_steps"), "run.eval_every"),
    **dict.fromkeys(("eval_iters",), "run.eval_batches"),
    **dict.fromkeys(("save_interval", "save_steps"), "run.save_every"),
    **dict.fromkeys(("save_total_limit",), "run.keep"),
    **dict.fromkeys(("report_to", "wandb", "tensorboard"), 'run.log, such as ["wandb"]'),
    **dict.fromkeys(("bf16", "fp16", "precision", "mixed_precision", "amp"), NARROW),
    **dict.fromkeys(("device",), "compute.device"),
    **dict.fromkeys(("dtype", "torch_dtype"), "compute.dtype"),
    **dict.fromkeys(("torch_compile",), "compute.compile"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), RECOMPUTE),
    **dict.fromkeys(("dataset", "dataset_name", "data_dir", "train_file"), TOKENS),
    **dict.fromkeys(("model_name", "model_name_or_path", "pretrained", "init_from"), BASE),
    **dict.fromkeys(("resume", "resume_from_checkpoint"), "no key: a run goes on by itself from the newest in run.folder"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers"), DEPTH),
    **dict.fromkeys(("d_model", "n_embd", "hidden_size", "embed_dim"), WIDTH),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads"), HEADS),
    **dict.fromkeys(("vocab_size",), "model.spec.vocab; left out it is the tokenizer's"),
}  # fmt: skip


def in_our_words(path: str) -> str | None:
    """What an unknown name of a config is called here, if it is a familiar one."""
    return FAMILIAR.get(path.rpartition(".")[2].replace("-", "_").lower())
