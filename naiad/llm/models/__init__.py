"""Decoder models: one implementation, configured per family, and transformers' own code for all
others."""
