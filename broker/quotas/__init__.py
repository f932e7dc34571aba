"""How much a client may take, and for how long one that took more is not listened to."""
