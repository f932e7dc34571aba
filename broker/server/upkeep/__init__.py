"""The loops beside the connections, and the marks and claims of what they write."""
