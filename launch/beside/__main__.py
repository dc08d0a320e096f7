"""Two language models as one: the prediction of the second is one more row of the first, with fitted exponents.

    python -m launch.beside --first runs/mine --second runs/transformer --text held_out.txt --out runs/both
    python -m launch.sample --run runs/both --prompt "Return the"

Exponents are fitted on a text that neither model has seen. The table has the loss on each half of it, every second document (of
one document, its first and its second half), with the exponents of the other half; the model that is saved has those of all.
"""

import sys

from jexplicit.experiments.command import entry_point
from launch.beside.config import Config

main = entry_point("launch.beside.run", Config, __doc__)

if __name__ == "__main__":
    sys.exit(main())
