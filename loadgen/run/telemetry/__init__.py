"""The server's own view: its metrics page and the GPUs, sampled beside the run."""
