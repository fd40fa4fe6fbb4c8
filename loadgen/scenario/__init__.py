"""YAML in, one frozen and checked Scenario out."""
