"""Features of images, computed without training."""

from jexplicit.features.images import describe as describe
from jexplicit.features.images import fit_axes as fit_axes
from jexplicit.features.images import patch_features as patch_features
from jexplicit.features.images import patch_filters as patch_filters
from jexplicit.features.images import scattering_pools as scattering_pools
from jexplicit.features.images import wavelets as wavelets
from jexplicit.features.random import fourier_directions as fourier_directions
from jexplicit.features.random import fourier_features as fourier_features
from jexplicit.features.random import positive_parts as positive_parts
from jexplicit.features.random import random_features as random_features
from jexplicit.features.random import unit_rows as unit_rows
