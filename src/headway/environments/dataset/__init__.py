"""The environment `dataset`: rows of a file or of a Hugging Face dataset, and a reward for the answer."""
