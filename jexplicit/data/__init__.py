"""Text corpora, tokenizers and the token streams made of them."""
