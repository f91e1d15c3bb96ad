"""Language models: weights, prefill and decode."""
