"""Agents behind one port: one module per agent; they emit events, store nothing and know no flow."""
