"""Text corpora, tokenizers, token streams, and images."""

from typing import TYPE_CHECKING

from jexplicit.runs.files import lazy_names

if TYPE_CHECKING:
    from jexplicit.data.images import one_hot as one_hot
    from jexplicit.data.images import pixel_features as pixel_features
    from jexplicit.data.images import read_images as read_images
    from jexplicit.data.tokenizers import encode_documents as encode_documents
    from jexplicit.data.tokenizers import train_tokenizer as train_tokenizer

_names = {"images": "one_hot pixel_features read_images", "tokenizers": "encode_documents train_tokenizer"}
__getattr__, __dir__ = lazy_names(__name__, _names)
