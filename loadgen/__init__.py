"""Load testing for OpenAI-compatible inference servers."""
