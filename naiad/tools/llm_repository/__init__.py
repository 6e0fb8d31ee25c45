"""Files of the four-part repository that `naiad init llm` writes: three Python models. They are
copied, never imported here."""
