"""What the group coordinators pass around, and small rules of groups."""
