"""leadline: replay recorded coding-agent sessions and measure which key scan a long context needs."""

__version__ = "0.1.0"
