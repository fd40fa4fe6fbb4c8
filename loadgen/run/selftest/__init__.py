"""What can this machine measure? The client against a simulator that knows the truth."""
