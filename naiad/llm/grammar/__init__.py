"""Grammars for structured output: schemas and expressions become rules, and rules become the text
of a grammar that the matchers of both engines read."""
