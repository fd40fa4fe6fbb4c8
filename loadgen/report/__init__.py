"""From numbers to eyes."""
