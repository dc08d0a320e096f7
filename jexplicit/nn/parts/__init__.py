"""Parts of a network and their names: nonlinearities, initial weights and losses."""
