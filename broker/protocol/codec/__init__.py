"""Generated encoders and decoders of messages."""
