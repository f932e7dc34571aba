"""Stands in for `test/service.py`, which kafka-python leaves out of its sdist.

Its own one starts brokers; here the broker is there already, and a test that wants another one
fails with a clear word.
"""


class ExternalService:
    """A broker that somebody else started."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    def close(self):
        pass


class SpawnedService:
    """A broker of the test's own."""

    def __init__(self, *_args, **_named):
        raise RuntimeError("this test wants to start a broker of its own")
