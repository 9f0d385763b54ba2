"""Deterministic orchestration: what happens next, decided from facts; the side effects live in activities."""
