"""What the parts of a network and of its training are called, for command lines: JAX is not needed."""

from typing import Literal, get_args

Activation = Literal["relu", "leaky_relu", "tanh", "sigmoid", "relu_tanh", "silu", "linear"]
ACTIVATION_NAMES: tuple[Activation, ...] = get_args(Activation)
Direct = Literal["none", "embedding", "tokens"]
InitializerName = Literal[
    "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "backward_normal", "fan_in_uniform", "standard", "zeros"
]
INITIALIZERS: tuple[InitializerName, ...] = get_args(InitializerName)
NormName = Literal["none", "batch", "layer", "group"]
NORMS: tuple[NormName, ...] = get_args(NormName)
ObjectiveName = Literal["squared_error", "sigmoid_squared_error", "binary_cross_entropy", "softmax_cross_entropy"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
OptimizerName = Literal["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adadelta", "adam", "nadam", "adamw"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
SamplerName = Literal["round-robin", "uniform", "balanced"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
ScheduleName = Literal["constant", "step", "exponential", "linear", "cosine"]
SCHEDULES: tuple[ScheduleName, ...] = get_args(ScheduleName)
ComparisonName = Literal[
    "activations", "normalisation", "objectives", "initializers", "optimizers", "batch-size", "samplers", "dropout"
]
COMPARISONS: tuple[ComparisonName, ...] = get_args(ComparisonName)
