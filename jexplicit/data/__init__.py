"""Text corpora, tokenizers, token streams, and images."""

from typing import TYPE_CHECKING

from jexplicit.runs.api import public_names

if TYPE_CHECKING:
    from jexplicit.data.contexts import PAD as PAD
    from jexplicit.data.contexts import distinct_contexts as distinct_contexts
    from jexplicit.data.corpus.held_out import hold_out as hold_out
    from jexplicit.data.images import Images as Images
    from jexplicit.data.images import one_hot as one_hot
    from jexplicit.data.images import pixel_features as pixel_features
    from jexplicit.data.images import read_images as read_images
    from jexplicit.data.tokenizers import Tokenizer as Tokenizer
    from jexplicit.data.tokenizers import encode_documents as encode_documents
    from jexplicit.data.tokenizers import train_tokenizer as train_tokenizer

__getattr__, __dir__ = public_names(__name__)
