"""An OpenAI-compatible server with known truth."""
