"""Levels of load against a server, and the facts they leave."""
