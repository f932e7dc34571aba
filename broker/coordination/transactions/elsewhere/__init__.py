"""Transactions whose coordinator is one broker and whose partitions lie on others."""
