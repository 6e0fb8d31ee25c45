"""Small tokenizers of the kinds that checkpoints bring, trained or written here."""

from __future__ import annotations

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXT = [
    "The quick brown fox jumps over the lazy dog. The end of the story, the beginning of another.",
    "Größe, naïve, façade, 東京タワー, привет мир, 😀😃 emoji and 12345 numbers; "
    "tabs\tand\nnew lines.",
]


def byte_level(vocab_size: int = 400) -> Tokenizer:
    """As Llama 3, Qwen and SmolLM2 have it: every byte has a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT * 3,
        trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """As Llama 2 and Mistral have it: words begin with a mark, rare characters fall back to byte
    tokens."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "T", "h", "e", "▁t", "he", "▁the", "o", "▁q", "u", "i", "c", "k", "qu", "."]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "q")]
    vocabulary = {word: index for index, word in enumerate([*words, "t", "q"])}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken("<s>", special=True), AddedToken("</s>", special=True)]
    )
    return tokenizer
