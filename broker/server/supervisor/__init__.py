"""Several brokers and their controller on one machine, run as one."""
