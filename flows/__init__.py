"""Flow files, personas and scenarios, with the loader and the linter beside the data."""
