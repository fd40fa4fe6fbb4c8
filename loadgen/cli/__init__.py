"""A file per verb."""
