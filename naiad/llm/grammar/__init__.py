"""What an answer may look like: schemas and expressions -> rules -> the text of a grammar that both
engines' matchers read."""
