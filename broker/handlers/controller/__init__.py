"""What a controller answers: brokers, followers of the metadata log, and forwarded requests."""
