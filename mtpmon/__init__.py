"""mtpmon: a monitor for llama-server with multi-token-prediction drafting."""

__version__ = "0.1.0"
