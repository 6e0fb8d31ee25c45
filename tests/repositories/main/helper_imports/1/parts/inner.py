from . import words

INNER = words.INNER
