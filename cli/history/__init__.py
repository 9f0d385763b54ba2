"""What is known of past and present runs: from the evidence store, and from the Temporal server."""
