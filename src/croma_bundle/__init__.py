"""croma-bundle: the containerised reproduction bundle for encoder robustness (RI, MaRI, CRoMa)."""

__version__ = "0.1.0"
