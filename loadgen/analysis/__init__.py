"""From facts to numbers; pure."""
