"""ARPA files of n-gram models: what KenLM, SRILM and the decoders of speech and translation read.

A chain of n-gram rows is a back-off model: with P(i|h') of the context h' without its furthest token,

    P(i|h) = P(i|h') exp(row_h[i]) / Z(h),      Z(h) = 1 + sum_{i after h} P(i|h') (exp(row_h[i]) - 1)

so an n-gram that occurred is written with log10 P(i|h), its context with the back-off weight -log10 Z(h), and the recursion of
ARPA, P(i|h) = 10^weight(h) P(i|h') for all others, gives the model's own interpolated numbers. Read again, a row is
log P(i|h) less what the file backs off to; the weights cancel in the softmax, for all models whose probabilities sum to 1.

`<pad>` is `<s>` in a context and `</s>` as what is predicted. A model that does not predict the end of a document (no `eos`)
has `</s>` at log10 p = -99: score without it. Contexts of the start of a document end at their first `<s>`, as in decoders.
"""
