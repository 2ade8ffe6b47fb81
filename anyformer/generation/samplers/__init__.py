"""Samplers: logits processors, each a small frozen dataclass, and draws by seed."""
