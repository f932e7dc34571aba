"""The broker's own keys, one module per area; `config/table.py` puts them together."""
