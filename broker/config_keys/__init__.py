"""The broker's own keys, one module per area; `config_table.py` puts them together."""
