"""The confounder-biased probe sweep and its reductions, APD and nIPD."""
