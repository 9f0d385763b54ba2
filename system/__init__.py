"""The one room that touches the operating system: processes, git and files."""
