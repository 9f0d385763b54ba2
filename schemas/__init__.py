"""Every contract that crosses a boundary: what people write, what is stored, what activities exchange."""
