"""Tokens to text and back: chat template, incremental detokenizing, stop strings."""
