"""Closed forms and sweeps without backpropagation for one softmax layer on numeric features."""

from jexplicit.solvers.explicit import SoftmaxLayer as SoftmaxLayer
from jexplicit.solvers.explicit import accuracy as accuracy
from jexplicit.solvers.explicit import dense_cooccurrence as dense_cooccurrence
from jexplicit.solvers.explicit import explicit_solution as explicit_solution
from jexplicit.solvers.explicit import mean_loss as mean_loss
from jexplicit.solvers.explicit import priming_number as priming_number
from jexplicit.solvers.explicit import solve_layers as solve_layers
from jexplicit.solvers.explicit import stack_logits as stack_logits
from jexplicit.solvers.sweeps import curvature_bound_sweeps as curvature_bound_sweeps
from jexplicit.solvers.sweeps import gram_least_squares as gram_least_squares
from jexplicit.solvers.sweeps import gram_matrix as gram_matrix
from jexplicit.solvers.sweeps import gram_softmax_sweeps as gram_softmax_sweeps
from jexplicit.solvers.sweeps import iterative_scaling_sweeps as iterative_scaling_sweeps
from jexplicit.solvers.sweeps import split_examples as split_examples
from jexplicit.solvers.sweeps import streamed_logits as streamed_logits
