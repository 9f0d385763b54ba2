"""What is allowed, decided purely and lexically: no I/O, no clock, no environment."""
