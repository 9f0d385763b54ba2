"""The ``stepwise`` command: what Temporal's own CLI and UI cannot do."""
