"""From an embedding matrix and a cohort to RI, MaRI, CRoMa and what explains them; pure numpy. Start at ``survey``."""
