"""Facts about inference engines, as data: dialect, metrics, health, recognition."""
