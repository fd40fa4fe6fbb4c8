"""Logs of real traffic: read as they are, and sent again as they were."""
