"""Features of images, computed without training."""

from jexplicit.features.descriptors import describe as describe
from jexplicit.features.descriptors import fit_axes as fit_axes
from jexplicit.features.fourier import fourier_directions as fourier_directions
from jexplicit.features.fourier import fourier_features as fourier_features
from jexplicit.features.patches import patch_features as patch_features
from jexplicit.features.patches import patch_filters as patch_filters
from jexplicit.features.positive import positive_parts as positive_parts
from jexplicit.features.positive import random_features as random_features
from jexplicit.features.positive import unit_rows as unit_rows
from jexplicit.features.scattering import scattering_pools as scattering_pools
from jexplicit.features.scattering import wavelets as wavelets
