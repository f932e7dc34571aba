"""What a loss of power took from transactions, found and ended again: by a lone replica alone."""
