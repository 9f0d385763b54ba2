"""Where evidence lives: the one place that writes it, redacting first and failing closed."""
