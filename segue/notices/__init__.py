"""A provider's word becomes a Notice. Sources set a flag; the training loop reads it at its safe points."""
