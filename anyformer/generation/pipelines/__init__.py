"""From a text to an answer in one call: a model, its tokenizer, and what lies between."""
