"""Measurements: python -m engine.bench NAME."""
