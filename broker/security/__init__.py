"""Who a client is: mechanisms of SASL, and what is kept of passwords. Pure; time comes in."""
