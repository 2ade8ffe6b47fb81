"""GGUF, the files of llama.cpp: one file with a model's sizes, its weights in blocks of few bits, and its tokenizer."""
