"""Programs of other people against a running server: scripts, since they need what the project does not install."""
